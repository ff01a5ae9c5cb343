//! The firmware's fields in /sys/class/dmi/id.
//!
//! Only root can read the hardware UUID, and the agent does not run as root. Before its unit
//! starts the agent, root copies the file into /run, which is root's own. An administrator can
//! give a machine or a container a UUID of its own, as the systemd credential `product_uuid`.

use std::{env, fs::File, io::Read, path::PathBuf};

use crate::machine::Machine;

const NAME: &str = "product_uuid";
/// Where the unit puts the copy.
const COPY: &str = "/run/svc-agent.product_uuid";
const MAX_UUID: u64 = 64;

/// In a container the firmware is that of its node, and only the administrator's UUID counts.
pub(super) fn product_uuid(machine: &Machine, is_container: bool) -> String {
    match given() {
        Some(uuid) => uuid,
        None if is_container => String::new(),
        None => firmware(machine),
    }
}

fn firmware(machine: &Machine) -> String {
    let uuid = field(machine, NAME);
    let copy = || Some(machine.line(COPY)).filter(|copy| is_uuid(copy));
    match uuid.is_empty() {
        true => copy().unwrap_or_default(),
        false => uuid,
    }
}

/// A field; empty if this user cannot read it.
pub(super) fn field(machine: &Machine, name: &str) -> String {
    machine.line(&format!("/sys/class/dmi/id/{name}"))
}

/// The administrator's UUID, in a folder that systemd names in a variable.
fn given() -> Option<String> {
    let folder = PathBuf::from(env::var_os("CREDENTIALS_DIRECTORY")?);
    let mut text = String::new();
    let file = File::open(folder.join(NAME)).ok()?;
    file.take(MAX_UUID).read_to_string(&mut text).ok()?;
    is_uuid(text.trim()).then(|| text.trim().to_owned())
}

fn is_uuid(text: &str) -> bool {
    let digits = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    text.len() == 36 && text.bytes().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    const UUID: &str = "4C4C4544-0042-3510-8054-B7C04F563232";

    #[test]
    fn the_units_copy_stands_in_for_the_file_that_only_root_reads() {
        let (_dir, copied) = machine(&[(COPY, UUID)]);
        assert_eq!(firmware(&copied), UUID);
        let (_dir, own) = machine(&[(COPY, UUID), ("/sys/class/dmi/id/product_uuid", "own\n")]);
        assert_eq!(firmware(&own), "own");
        let (_dir, damaged) = machine(&[(COPY, "x")]);
        assert_eq!(firmware(&damaged), "");
    }

    /// Root must not write where the agent's user could put a link: not into a folder that systemd makes for that user.
    #[test]
    fn root_writes_nothing_into_a_folder_of_the_agents_user() {
        let unit = include_str!("../../../../packaging/systemd/svc-agent.service");
        let as_root: Vec<&str> = unit
            .lines()
            .filter_map(|line| line.strip_prefix("Exec")?.split_once('='))
            .filter(|(_, command)| {
                command
                    .trim_start_matches(['-', '@', ':'])
                    .starts_with(['+', '!'])
            })
            .map(|(_, command)| command)
            .collect();
        let copy = COPY.replace("/run/", "%t/");
        assert!(as_root.iter().any(|command| command.ends_with(&copy)));
        for command in as_root {
            for folder in [
                "%t/",
                "/run/",
                "%S/",
                "/var/lib/",
                "%C/",
                "/var/cache/",
                "%L/",
                "/var/log/",
            ] {
                let own = format!("{folder}svc-agent/");
                assert!(!command.contains(&own), "{command}");
            }
        }
    }

    #[test]
    fn only_a_well_formed_uuid_is_accepted() {
        assert!(is_uuid(UUID));
        assert!(!is_uuid("none") && !is_uuid("") && !is_uuid(&"x".repeat(36)));
    }
}
