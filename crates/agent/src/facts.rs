//! The facts by which the service recognises this machine.
//!
//! Gathering never fails, and needs neither a network nor root: a fact that cannot be read
//! stays empty. The service compares machines by the strongest identifier that both have.
//! So an empty identifier is harmless, but a wrong one is not: the agent skips a file that
//! may be stale, or the same on many machines.

mod addresses;
mod cloud;
mod container;
mod dmi;
mod release;

use svc_proto::v1::HostFacts;

use crate::{
    machine::{Machine, clean},
    vitals::Memory,
};

/// The service requires a host name.
const NAMELESS: &str = "localhost";

/// Whether the agent runs in a container.
pub fn is_container() -> bool {
    container::detected(&Machine::here())
}

pub fn gather() -> HostFacts {
    of(&Machine::here())
}

fn of(machine: &Machine) -> HostFacts {
    let release = release::read(machine);
    let is_container = container::detected(machine);
    HostFacts {
        hostname: hostname(machine),
        os: release.id,
        os_version: release.version,
        arch: std::env::consts::ARCH.into(),
        kernel_version: machine.line("/proc/sys/kernel/osrelease"),
        machine_id: machine_id(machine),
        hardware_uuid: dmi::product_uuid(machine, is_container),
        cloud_instance_id: clean(&cloud::instance_id(machine, is_container).unwrap_or_default()),
        mac_addresses: addresses::hardware(machine),
        ip_addresses: addresses::internet(machine),
        boot_id: machine.line("/proc/sys/kernel/random/boot_id"),
        cpu_count: cpu_count(&machine.text("/proc/stat")),
        memory_total_bytes: Memory::read(machine).total,
    }
}

fn hostname(machine: &Machine) -> String {
    let name = machine.line("/proc/sys/kernel/hostname");
    if name.is_empty() {
        NAMELESS.into()
    } else {
        name
    }
}

/// During the first boot the file may contain `uninitialized`.
fn machine_id(machine: &Machine) -> String {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let mut ids = files.into_iter().map(|file| machine.line(file));
    let is_id = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    ids.find(is_id).unwrap_or_default()
}

/// The processors that are online, whatever share of them this process may use.
fn cpu_count(stat: &str) -> u32 {
    let is_one = |line: &&str| {
        let digit = line
            .strip_prefix("cpu")
            .and_then(|rest| rest.bytes().next());
        digit.is_some_and(|byte| byte.is_ascii_digit())
    };
    u32::try_from(stat.lines().filter(is_one).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    #[test]
    fn a_machine_without_any_files_still_has_a_name() {
        let (_dir, machine) = machine(&[]);
        let expected = HostFacts {
            hostname: "localhost".into(),
            os: "linux".into(),
            arch: std::env::consts::ARCH.into(),
            ..Default::default()
        };
        assert_eq!(of(&machine), expected);
    }

    #[test]
    fn an_uninitialized_machine_id_is_left_out() {
        let id = "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf";
        let (_dir, first_boot) = machine(&[("/etc/machine-id", "uninitialized\n")]);
        assert_eq!(machine_id(&first_boot), "");
        let (_dir, old) = machine(&[("/etc/machine-id", ""), ("/var/lib/dbus/machine-id", id)]);
        assert_eq!(machine_id(&old), id);
    }

    #[test]
    fn a_container_does_not_report_the_identity_of_its_node() {
        let node = [
            (
                "/sys/class/dmi/id/product_uuid",
                "4c4c4544-0042-3510-8054-b7c04f563232\n",
            ),
            ("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
            ("/sys/class/dmi/id/board_asset_tag", "i-0abc\n"),
            ("/etc/machine-id", "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf\n"),
        ];
        let (_dir, machine) = self::machine(&node);
        let facts = of(&machine);
        assert!(!facts.hardware_uuid.is_empty() && !facts.cloud_instance_id.is_empty());
        let inside = [&node[..], &[("/run/systemd/container", "lxc\n")]].concat();
        let (_dir, machine) = self::machine(&inside);
        let facts = of(&machine);
        assert_eq!(
            (facts.hardware_uuid, facts.cloud_instance_id),
            Default::default()
        );
        assert!(!facts.machine_id.is_empty(), "a container may have its own");
    }

    #[test]
    fn each_processor_counts_once() {
        assert_eq!(
            cpu_count("cpu  1 2\ncpu0 1\ncpu1 1\nintr 5\ncpufreq 7\n"),
            2
        );
    }
}
