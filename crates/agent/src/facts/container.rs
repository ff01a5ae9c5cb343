//! Whether the agent runs in a container.
//!
//! A container sees the firmware of its node: all containers of a node, and the node itself,
//! would report one hardware UUID and count as one machine. So in a container the firmware
//! does not identify anything.

use crate::machine::Machine;

/// Files that container managers leave: systemd (LXC, systemd-nspawn and others), Podman,
/// Docker, Kubernetes, LXC and LXD.
const FILES: [&str; 6] = [
    "/run/systemd/container",
    "/run/.containerenv",
    "/.dockerenv",
    "/var/run/secrets/kubernetes.io/serviceaccount",
    "/dev/.lxc",
    "/dev/lxd/sock",
];
/// Parts of the cgroup paths of process 1, where the container has no cgroup namespace.
const CGROUPS: [&str; 6] = ["docker", "kubepods", "libpod", "lxc", "nspawn", "garden"];
/// `container=` names the manager, by a convention that systemd started.
const VARIABLES: [&str; 2] = ["container=", "KUBERNETES_SERVICE_HOST="];

pub(super) fn detected(machine: &Machine) -> bool {
    FILES.iter().any(|file| machine.has(file))
        || ["/proc/1/environ", "/proc/self/environ"]
            .iter()
            .any(|file| has_variable(&machine.bytes(file)))
        || has_cgroup(&machine.text("/proc/1/cgroup"))
}

fn has_variable(environ: &[u8]) -> bool {
    environ.split(|byte| *byte == 0).any(|variable| {
        VARIABLES
            .iter()
            .any(|name| variable.starts_with(name.as_bytes()))
    })
}

/// `0::/system.slice/docker-….scope`
fn has_cgroup(text: &str) -> bool {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .into_iter()
        .any(|path| CGROUPS.iter().any(|part| path.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    #[test]
    fn containers_are_recognised_and_machines_are_not() {
        for (file, content) in [
            ("/run/systemd/container", "lxc\n"),
            ("/run/.containerenv", ""),
            ("/.dockerenv", ""),
            ("/proc/1/environ", "PATH=/bin\0container=systemd-nspawn\0"),
            ("/proc/self/environ", "KUBERNETES_SERVICE_HOST=10.0.0.1\0"),
            ("/proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n"),
            ("/proc/1/cgroup", "12:memory:/docker/0123\n0::/\n"),
        ] {
            let (_dir, container) = machine(&[(file, content)]);
            assert!(detected(&container), "{file} {content}");
        }
        let (_dir, host) = machine(&[
            ("/proc/1/environ", "HOME=/\0containers=1\0"),
            ("/proc/1/cgroup", "0::/init.scope\n"),
            ("/run/systemd/system/x", ""),
        ]);
        assert!(!detected(&host));
    }
}
