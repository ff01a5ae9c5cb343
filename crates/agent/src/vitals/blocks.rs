//! Reads, writes and busy time of the machine's disks, from /proc/diskstats.
//!
//! Only whole disks with a device of their own count. Partitions, logical volumes, RAID
//! arrays, encrypted and loop devices carry the same bytes a second time. Optical and floppy
//! drives do not count, nor does a disk that was never read: it is an empty card reader.

use svc_proto::{contract::limits::MAX_BLOCK_DEVICES, v1::BlockDevice};

use crate::machine::{Machine, bounded, clean};

/// The kernel counts sectors of this size, whatever the disk's own sectors are.
const SECTOR: u64 = 512;
/// The majors of floppy and optical drives.
const DRIVES: [&str; 2] = ["2", "11"];

/// In the kernel's order. Beyond the limit, the last ones are left out.
pub(super) fn block_devices(machine: &Machine) -> Vec<BlockDevice> {
    let text = machine.text("/proc/diskstats");
    let devices = text.lines().filter_map(parse);
    devices
        .filter(|device| is_disk(machine, &device.name))
        .take(MAX_BLOCK_DEVICES)
        .collect()
}

/// `254 0 vda reads merged sectors ms writes merged sectors ms in-flight busy-ms …`; `None` for
/// a drive, and for a device that was never used.
fn parse(line: &str) -> Option<BlockDevice> {
    let mut fields = line.split_whitespace();
    let (major, _minor, name) = (fields.next()?, fields.next()?, fields.next()?);
    let numbers: Vec<u64> = fields
        .map_while(|number| number.parse().ok())
        .take(10)
        .collect();
    let at = |index: usize| Some(bounded(*numbers.get(index)?));
    let bytes = |index| Some(bounded(at(index)?.saturating_mul(SECTOR)));
    let device = BlockDevice {
        name: clean(name),
        reads: at(0)?,
        read_bytes: bytes(2)?,
        writes: at(4)?,
        written_bytes: bytes(6)?,
        busy_ms: at(9)?,
    };
    (device.reads > 0 && !DRIVES.contains(&major)).then_some(device)
}

/// A slash in a device's name is an exclamation mark in /sys. One path of a multipath disk is
/// hidden, and the disk that it leads to counts.
fn is_disk(machine: &Machine, name: &str) -> bool {
    let folder = format!("/sys/block/{}", name.replace('/', "!"));
    machine.has(&format!("{folder}/device")) && machine.line(&format!("{folder}/hidden")) != "1"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use svc_proto::contract::limits::MAX_NUMBER;

    use super::*;
    use crate::machine::tests::machine;

    const TEXT: &str = "\
   7       0 loop0 656 14 11788 69 9721 8487 61094 3535 0 3608 6771 0 0 0 0
 254       0 vda 323 57 66 445 436 103 408 252 0 3521 310 784 698 315 98 13 31
 254       1 vda1 300 57 60 445 436 103 408 252 0 3521 310
 253       0 dm-0 9 0 9 9 9 9 9 9 9 9 9
 104       0 cciss/c0d0 1 0 2 0 3 0 4 0 0 5 0
  11       0 sr0 1 0 1 0 0 0 0 0 0 0 0
   8      16 sdb 0 0 0 0 0 0 0 0 0 0 0
 259       1 nvme0c0n1 7 0 7 7 7 7 7 7 7 7 7
   8      32 sdc 1 2 3
";

    #[test]
    fn only_whole_disks_with_a_device_count() {
        let disks = ["vda", "cciss!c0d0", "sr0", "sdb", "sdc"];
        let device = |name: &str| (format!("/sys/block/{name}/device/vendor"), "");
        let mut files: Vec<(String, &str)> = disks.map(device).into();
        files.push(device("nvme0c0n1"));
        files.push(("/sys/block/nvme0c0n1/hidden".into(), "1\n"));
        files.push(("/sys/block/vda/hidden".into(), "0\n"));
        files.push(("/sys/block/dm-0/dm/name".into(), "root\n"));
        files.push(("/proc/diskstats".into(), TEXT));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let (_dir, machine) = machine(&files);
        let vda = BlockDevice {
            name: "vda".into(),
            reads: 323,
            read_bytes: 66 * 512,
            writes: 436,
            written_bytes: 408 * 512,
            busy_ms: 3521,
        };
        let old = BlockDevice {
            name: "cciss/c0d0".into(),
            reads: 1,
            read_bytes: 1024,
            writes: 3,
            written_bytes: 2048,
            busy_ms: 5,
        };
        assert_eq!(block_devices(&machine), [vda, old]);
    }

    proptest! {
        #[test]
        fn no_line_causes_a_panic_or_a_number_out_of_bounds(line in "[ -~]{0,80}", numbers in prop::collection::vec(any::<u64>(), 0..12)) {
            parse(&line);
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            if let Some(device) = parse(&format!("8 0 sda {}", numbers.join(" "))) {
                prop_assert!(device.read_bytes <= MAX_NUMBER && device.busy_ms <= MAX_NUMBER);
            }
        }
    }
}
