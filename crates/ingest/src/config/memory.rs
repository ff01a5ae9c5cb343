//! How much memory this process may use: the machine's, or less where a control group limits it.
//!
//! A limit may be set on the process's own group or on any group above it, so all of them are read. In a container
//! the path that the kernel reports may not exist in the mounted tree, whose root is then the container's own group.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where a version of control groups keeps the limits of a group.
struct Hierarchy {
    mount: &'static str,
    limits: &'static [&'static str],
}

const VERSION_2: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
};
const VERSION_1: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
};

/// The smallest limit in bytes, if any is known. `root` is `/` except in tests.
pub fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = groups.lines().flat_map(|line| group_limits(root, line));
    groups.chain(machine(root)).min()
}

/// The limits of the group that a line of `/proc/self/cgroup` names (`number:controllers:path`), and of all groups
/// above it.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let hierarchy = match controllers {
        "" => VERSION_2,
        some if some.split(',').any(|name| name == "memory") => VERSION_1,
        _ => return Vec::new(),
    };
    let mount = root.join(hierarchy.mount);
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    let files = groups.flat_map(|group| hierarchy.limits.iter().map(move |file| group.join(file)));
    files.filter_map(|file| number(mount.join(file))).collect()
}

/// `None` for a group without a limit, whose file says `max`.
fn number(file: PathBuf) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = total?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:  8000 kB\nMemFree:  10 kB\n");

    fn limit_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit(root.path())
    }

    #[test]
    fn without_a_limit_it_is_the_memory_of_the_machine() {
        assert_eq!(limit_with(&[]), None);
        assert_eq!(limit_with(&[MACHINE]), Some(8_192_000));
        let unlimited = [
            MACHINE,
            ("proc/self/cgroup", "0::/a.slice\n"),
            ("sys/fs/cgroup/a.slice/memory.max", "max\n"),
        ];
        assert_eq!(limit_with(&unlimited), Some(8_192_000));
    }

    #[test]
    fn the_smallest_limit_of_the_group_and_the_groups_above_applies() {
        let version_2 = [
            MACHINE,
            ("proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("sys/fs/cgroup/a.slice/memory.max", "3000\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.high", "4000\n"),
        ];
        assert_eq!(limit_with(&version_2), Some(3000));
        let groups = "5:cpu:/other\n4:memory,hugetlb:/docker/x\n0::/\n";
        let version_1 = [
            MACHINE,
            ("proc/self/cgroup", groups),
            (
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
                "2000\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(limit_with(&version_1), Some(2000));
    }

    #[test]
    fn in_a_container_the_root_of_the_mounted_tree_is_its_group() {
        let container = [
            MACHINE,
            ("proc/self/cgroup", "0::/../../kubepods/pod1\n"),
            ("sys/fs/cgroup/memory.max", "5000\n"),
        ];
        assert_eq!(limit_with(&container), Some(5000));
    }
}
