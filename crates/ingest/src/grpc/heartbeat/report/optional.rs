//! Bounds of the vitals that a sample may carry or not: inodes and available bytes of file systems, interfaces, block
//! devices, pressure, steal. Absent is not zero, and agents of an older version send none of them.

use svc_pipeline::vitals::optional;
use svc_proto::{
    contract::limits::{MAX_BLOCK_DEVICES, MAX_DISKS, MAX_INTERFACES, MAX_NUMBER},
    v1::Vitals,
};
use svc_store::OptionalVitals;

use super::{TOO_LARGE, is_text};

/// The optional vitals as they are stored, or the rule that one of them breaks.
pub(super) fn row(vitals: &Vitals) -> Result<Option<Box<OptionalVitals>>, &'static str> {
    check(vitals)?;
    let optional = optional(vitals).map_err(|_| TOO_LARGE)?;
    let mut parts = optional.iter().flat_map(|optional| &optional.parts);
    match parts.all(|part| part.value.cast_unsigned() <= MAX_NUMBER) {
        true => Ok(optional),
        false => Err(TOO_LARGE),
    }
}

fn check(vitals: &Vitals) -> Result<(), &'static str> {
    if vitals.interfaces.len() > MAX_INTERFACES {
        return Err("more than 64 interfaces");
    }
    if vitals.block_devices.len() > MAX_BLOCK_DEVICES {
        return Err("more than 64 block devices");
    }
    if vitals.unreadable_mounts.len() > MAX_DISKS {
        return Err("more than 64 unreadable mounts");
    }
    let mut texts = vitals
        .unreadable_mounts
        .iter()
        .chain([&vitals.spool_problem]);
    if !texts.all(|text| is_text(text)) {
        return Err("a text is longer than 255 bytes or holds a control character");
    }
    names(&vitals.interfaces, |one| &one.name)?;
    names(&vitals.block_devices, |one| &one.name)?;
    Ok(())
}

/// A name stands for one series of values, so a list has it once. Lists are short, and this allocates nothing.
fn names<T>(list: &[T], name: fn(&T) -> &str) -> Result<(), &'static str> {
    let is_new = |index: usize, one: &str| list[..index].iter().all(|other| name(other) != one);
    let is_valid = |(index, one)| {
        let one = name(one);
        !one.is_empty() && is_text(one) && is_new(index, one)
    };
    match list.iter().enumerate().all(is_valid) {
        true => Ok(()),
        false => {
            Err("a name is empty, used twice, longer than 255 bytes or holds a control character")
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure};

    use super::*;

    fn interface(name: &str) -> Interface {
        Interface {
            name: name.into(),
            rx_bytes: MAX_NUMBER,
            ..Default::default()
        }
    }

    fn device(name: &str) -> BlockDevice {
        BlockDevice {
            name: name.into(),
            busy_ms: MAX_NUMBER,
            ..Default::default()
        }
    }

    fn full() -> Vitals {
        let names = (0..64).map(|number| format!("name{number}"));
        let disk = Disk {
            available_bytes: Some(0),
            inodes_used: Some(MAX_NUMBER),
            read_only: Some(true),
            ..Default::default()
        };
        Vitals {
            disks: vec![disk],
            interfaces: names.clone().map(|name| interface(&name)).collect(),
            block_devices: names.map(|name| device(&name)).collect(),
            unreadable_mounts: vec!["/mnt/nfs".into(); 64],
            pressure: Some(Pressure {
                io_full_ms: Some(MAX_NUMBER),
                ..Default::default()
            }),
            cpu_steal_ms: Some(0),
            ..Default::default()
        }
    }

    fn pressure(vitals: &mut Vitals) -> &mut Pressure {
        vitals.pressure.get_or_insert_default()
    }

    #[test]
    fn all_at_their_limits_and_none_at_all_are_accepted() {
        let parts = row(&full()).unwrap().unwrap().parts;
        assert_eq!(parts.len(), 3 + 64 * 2 + 64 * 5 + 2);
        assert_eq!(row(&Vitals::default()), Ok(None));
    }

    #[test]
    fn each_of_them_is_bounded() {
        let changes: [fn(&mut Vitals); 9] = [
            |vitals| vitals.interfaces.push(interface("one more")),
            |vitals| vitals.block_devices.push(device("one more")),
            |vitals| vitals.unreadable_mounts.push("/more".into()),
            |vitals| vitals.interfaces[7].name = "name6".into(),
            |vitals| vitals.block_devices[7].name.clear(),
            |vitals| vitals.interfaces[7].name = "x".repeat(256),
            |vitals| vitals.block_devices[7].name = "sd\na".into(),
            |vitals| vitals.unreadable_mounts[7] = "/\u{0}".into(),
            |vitals| vitals.spool_problem = "x".repeat(256),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut vitals = full();
            change(&mut vitals);
            assert!(row(&vitals).is_err(), "change {number}");
        }
    }
    #[test]
    fn every_number_is_accepted_up_to_its_limit_and_rejected_above() {
        let numbers: [fn(&mut Vitals, u64); 16] = [
            |vitals, value| vitals.disks[0].available_bytes = Some(value),
            |vitals, value| vitals.disks[0].inodes_used = Some(value),
            |vitals, value| vitals.disks[0].inodes_free = Some(value),
            |vitals, value| vitals.interfaces[63].rx_bytes = value,
            |vitals, value| vitals.interfaces[63].tx_bytes = value,
            |vitals, value| vitals.block_devices[63].reads = value,
            |vitals, value| vitals.block_devices[63].read_bytes = value,
            |vitals, value| vitals.block_devices[63].writes = value,
            |vitals, value| vitals.block_devices[63].written_bytes = value,
            |vitals, value| vitals.block_devices[63].busy_ms = value,
            |vitals, value| pressure(vitals).cpu_some_ms = Some(value),
            |vitals, value| pressure(vitals).memory_some_ms = Some(value),
            |vitals, value| pressure(vitals).memory_full_ms = Some(value),
            |vitals, value| pressure(vitals).io_some_ms = Some(value),
            |vitals, value| pressure(vitals).io_full_ms = Some(value),
            |vitals, value| vitals.cpu_steal_ms = Some(value),
        ];
        for (index, set) in numbers.into_iter().enumerate() {
            let judged = |value| {
                let mut vitals = full();
                set(&mut vitals, value);
                row(&vitals).map(drop)
            };
            for allowed in [0, MAX_NUMBER - 1, MAX_NUMBER] {
                assert_eq!(judged(allowed), Ok(()), "number {index}");
            }
            for beyond in [MAX_NUMBER + 1, 1 << 63, u64::MAX] {
                assert_eq!(judged(beyond), Err(TOO_LARGE), "number {index}");
            }
        }
    }
}
