//! The machine's own file systems and how full they are, from /proc/self/mountinfo and
//! `statvfs`, with the numbers of `df`.
//!
//! A file system counts if it is on a block device, or is one of the few types that manage
//! devices themselves. Network file systems do not count: `statvfs` on a server that hangs
//! would hang the agent. Read-only images, which are always full (squashfs of snaps, CDs), do
//! not count either. A device that is mounted several times is one disk; a mount of its root
//! is preferred over one of a folder, then the shortest mount point.

use std::{collections::HashMap, ffi::OsStr, os::unix::ffi::OsStrExt};

use rustix::io::Errno;
use svc_proto::v1::Disk;

use crate::machine::{Machine, bounded, clean};

/// File systems over several devices have a number of their own, with major 0.
const OWN_NUMBERS: [&str; 3] = ["btrfs", "zfs", "bcachefs"];
/// Options of a file system that takes no writes. Since Linux 6.15, ext4 marks one that turned
/// read-only after an error, or was shut down, by an option of its own.
const READ_ONLY: [&[u8]; 3] = [b"ro", b"emergency_ro", b"shutdown"];
const IMAGES: [&str; 6] = ["squashfs", "iso9660", "udf", "erofs", "cramfs", "romfs"];

#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// `major:minor`.
    number: String,
    /// The folder of the file system that is mounted: `/`, or another one for a bind mount.
    root: Vec<u8>,
    mount_point: Vec<u8>,
    fs_type: String,
    device: Vec<u8>,
    is_read_only: bool,
}

/// The file systems that count, in the order of mounting.
pub(super) fn mounts(machine: &Machine) -> Vec<Mount> {
    real(&machine.bytes("/proc/self/mountinfo"))
}

/// As `df` counts: space reserved for root is not used. `None`: the file system has no size.
/// The call may hang with its device, so it belongs to a thread of its own.
pub(super) fn measure(mount: &Mount) -> Result<Option<Disk>, Errno> {
    let stat = rustix::fs::statvfs(OsStr::from_bytes(&mount.mount_point))?;
    let bytes = |blocks: u64| bounded(blocks.saturating_mul(stat.f_frsize));
    let (inodes, has_inodes) = (bounded, stat.f_files > 0);
    let disk = Disk {
        mount_point: text(&mount.mount_point),
        device: text(&mount.device),
        fs_type: clean(&mount.fs_type),
        total_bytes: bytes(stat.f_blocks),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        available_bytes: Some(bytes(stat.f_bavail)),
        inodes_used: has_inodes.then(|| inodes(stat.f_files.saturating_sub(stat.f_ffree))),
        inodes_free: has_inodes.then(|| inodes(stat.f_ffree)),
        read_only: Some(mount.is_read_only),
    };
    Ok((disk.total_bytes > 0).then_some(disk))
}

fn real(mountinfo: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for mount in visible(mountinfo).into_iter().filter(Mount::is_real) {
        match places.get(&mount.number) {
            Some(place) if mount.rank() < mounts[*place].rank() => mounts[*place] = mount,
            Some(_) => {}
            None => {
                places.insert(mount.number.clone(), mounts.len());
                mounts.push(mount);
            }
        }
    }
    mounts
}

/// A mount hides an earlier one at the same place.
fn visible(mountinfo: &[u8]) -> Vec<Mount> {
    let mounts: Vec<Mount> = mountinfo
        .split(|b| *b == b'\n')
        .filter_map(Mount::parse)
        .collect();
    let mut last = HashMap::new();
    for (index, mount) in mounts.iter().enumerate() {
        last.insert(mount.mount_point.clone(), index);
    }
    let is_last = |index, mount: &Mount| last.get(&mount.mount_point) == Some(&index);
    let indexed = mounts.into_iter().enumerate();
    indexed
        .filter(|(index, mount)| is_last(*index, mount))
        .map(|(_, mount)| mount)
        .collect()
}

impl Mount {
    /// `36 35 98:0 /root /mount/point options… - type device super-options`. The options of the
    /// mount say less about the file system: the agent's sandbox mounts everything read-only.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let number = fields.nth(2)?;
        let (root, mount_point) = (fields.next()?, fields.next()?);
        fields.find(|field| *field == b"-")?;
        let (fs_type, device) = (fields.next()?, fields.next()?);
        let mut options = fields
            .next()
            .unwrap_or_default()
            .split(|byte| *byte == b',');
        Some(Self {
            number: String::from_utf8(number.into()).ok()?,
            root: unescape(root),
            mount_point: unescape(mount_point),
            fs_type: String::from_utf8_lossy(fs_type).into_owned(),
            device: unescape(device),
            is_read_only: options.any(|option| READ_ONLY.contains(&option)),
        })
    }

    /// A file system that turns read-only is still the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.number, &self.mount_point) == (&other.number, &other.mount_point)
    }

    fn is_real(&self) -> bool {
        let has_device = !self.number.starts_with("0:");
        let fs_type = self.fs_type.as_str();
        (has_device || OWN_NUMBERS.contains(&fs_type)) && !IMAGES.contains(&fs_type)
    }

    pub(super) fn place(&self) -> String {
        text(&self.mount_point)
    }

    pub(super) fn fs_type(&self) -> &str {
        &self.fs_type
    }

    fn rank(&self) -> (bool, usize) {
        (self.root != b"/", self.mount_point.len())
    }
}

/// Spaces, tabs, newlines and backslashes are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((byte, after)) = rest.split_first() {
        let code = after
            .first_chunk::<3>()
            .filter(|_| *byte == b'\\')
            .and_then(octal);
        plain.push(code.unwrap_or(*byte));
        rest = code.map_or(after, |_| &after[3..]);
    }
    plain
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok()
}

fn text(bytes: &[u8]) -> String {
    clean(&String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mount_points(mountinfo: &str) -> Vec<String> {
        real(mountinfo.as_bytes())
            .iter()
            .map(|mount| text(&mount.mount_point))
            .collect()
    }

    #[test]
    fn only_file_systems_with_a_device_are_disks() {
        let mountinfo = "\
22 27 0:21 / /proc rw - proc proc rw
23 27 0:22 / /sys rw shared:7 - sysfs sysfs rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
28 27 0:30 / /tmp rw - tmpfs tmpfs rw
29 27 0:31 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
30 27 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
31 27 0:40 / /mnt/nfs rw - nfs4 server:/export rw
32 27 0:41 / /mnt/ssh rw - fuse.sshfs host: rw
33 27 0:42 /@ /data rw - btrfs /dev/sdb rw
34 27 0:42 /@home /data/home rw - btrfs /dev/sdb rw
35 27 8:17 / /media/USB\\040stick rw - vfat /dev/sdc1 rw
36 27 11:0 / /media/cd ro - iso9660 /dev/sr0 ro
";
        assert_eq!(mount_points(mountinfo), ["/", "/data", "/media/USB stick"]);
    }

    #[test]
    fn a_device_is_one_disk_at_its_preferred_mount_point() {
        let mountinfo = "\
1 0 8:1 /var/lib/kubelet/pods/a /pods/a rw - ext4 /dev/sda1 rw
2 0 8:2 / /srv rw - xfs /dev/sda2 rw
3 0 8:1 / /mnt/again rw - ext4 /dev/sda1 rw
4 0 8:1 / / rw - ext4 /dev/sda1 rw
5 0 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw
";
        assert_eq!(mount_points(mountinfo), ["/", "/srv"]);
        let container = "\
1 0 8:1 /usr/lib/os-release /run/host/os-release ro - ext4 /dev/sda1 rw
2 0 8:1 /var/lib/machines/one / rw - ext4 /dev/sda1 rw
";
        assert_eq!(mount_points(container), ["/"]);
    }

    #[test]
    fn a_mount_hides_an_earlier_one() {
        let mountinfo =
            "1 0 8:1 / /mnt rw - ext4 /dev/sda1 rw\n2 0 0:9 / /mnt rw - tmpfs tmpfs rw\n";
        assert!(mount_points(mountinfo).is_empty());
    }

    #[test]
    fn a_file_system_is_read_only_and_not_one_of_its_mounts() {
        let mountinfo = "\
1 0 8:1 / / ro,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
2 0 8:2 / /a rw - ext4 /dev/sda2 ro,errors=remount-ro
3 0 8:3 / /b rw - ext4 /dev/sda3 rw,emergency_ro
4 0 8:4 / /c rw - ext4 /dev/sda4
";
        let mounts = real(mountinfo.as_bytes());
        let read_only: Vec<bool> = mounts.iter().map(|mount| mount.is_read_only).collect();
        assert_eq!(read_only, [false, true, true, false]);
    }

    #[test]
    fn escapes_are_decoded_and_incomplete_ones_kept() {
        assert_eq!(unescape(br"a\040b\134\011"), b"a b\\\t");
        assert_eq!(unescape(br"\04"), br"\04");
        assert_eq!(unescape(br"\999\777"), br"\999\777");
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), words in "[ -~\n]{0,200}") {
            real(&bytes);
            real(words.as_bytes());
        }
    }
}
