//! The vitals that not every sample has: the fields of a message, and the parts that are stored.
//!
//! Each list of fields is the whole translation of one message, in both directions: reports become rows, and
//! the queue carries rows as messages. A field that is absent is no part: absent is not zero.

use std::{num::TryFromIntError, sync::Arc};

use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure, Vitals};
use svc_store::{OptionalVitals, PartKind, PartRow};

/// One field of the message `M`.
struct Field<M> {
    kind: PartKind,
    get: fn(&M) -> Option<u64>,
    set: fn(&mut M, u64),
}

/// A field that is optional, or is always there.
macro_rules! field {
    ($kind:ident, $name:ident?) => {
        Field {
            kind: PartKind::$kind,
            get: |message| message.$name,
            set: |message, value| message.$name = Some(value),
        }
    };
    ($kind:ident, $name:ident) => {
        Field {
            kind: PartKind::$kind,
            get: |message| Some(message.$name),
            set: |message, value| message.$name = value,
        }
    };
}

const DISK: &[Field<Disk>] = &[
    field!(DiskAvailable, available_bytes?),
    field!(DiskInodesUsed, inodes_used?),
    field!(DiskInodesFree, inodes_free?),
    Field {
        kind: PartKind::DiskReadOnly,
        get: |disk| disk.read_only.map(u64::from),
        set: |disk, value| disk.read_only = Some(value != 0),
    },
];

const INTERFACE: &[Field<Interface>] =
    &[field!(InterfaceRx, rx_bytes), field!(InterfaceTx, tx_bytes)];

const BLOCK_DEVICE: &[Field<BlockDevice>] = &[
    field!(DeviceReads, reads),
    field!(DeviceReadBytes, read_bytes),
    field!(DeviceWrites, writes),
    field!(DeviceWrittenBytes, written_bytes),
    field!(DeviceBusy, busy_ms),
];

const PRESSURE: &[Field<Pressure>] = &[
    field!(PressureCpuSome, cpu_some_ms?),
    field!(PressureMemorySome, memory_some_ms?),
    field!(PressureMemoryFull, memory_full_ms?),
    field!(PressureIoSome, io_some_ms?),
    field!(PressureIoFull, io_full_ms?),
];

const HOST: &[Field<Vitals>] = &[field!(CpuSteal, cpu_steal_ms?)];

/// The most parts that a disk, an interface, a block device, and the host itself have.
pub const MOST_PARTS: [usize; 4] = [
    DISK.len(),
    INTERFACE.len(),
    BLOCK_DEVICE.len(),
    PRESSURE.len() + HOST.len(),
];

/// What is stored of the optional vitals, if there are any.
pub fn optional(vitals: &Vitals) -> Result<Option<Box<OptionalVitals>>, TryFromIntError> {
    let mut parts = Parts::default();
    for disk in &vitals.disks {
        parts.add(DISK, &disk.mount_point, disk)?;
    }
    for interface in &vitals.interfaces {
        parts.add(INTERFACE, &interface.name, interface)?;
    }
    for device in &vitals.block_devices {
        parts.add(BLOCK_DEVICE, &device.name, device)?;
    }
    if let Some(pressure) = &vitals.pressure {
        parts.add(PRESSURE, "", pressure)?;
    }
    parts.add(HOST, "", vitals)?;
    parts.0.shrink_to_fit(); // It is counted by its length, and may wait in the queue.
    let optional = OptionalVitals {
        parts: parts.0,
        unreadable_mounts: vitals.unreadable_mounts.clone(),
        spool_problem: vitals.spool_problem.clone(),
    };
    Ok((optional != OptionalVitals::default()).then(|| Box::new(optional)))
}

#[derive(Default)]
struct Parts(Vec<PartRow>);

impl Parts {
    fn add<M>(
        &mut self,
        fields: &[Field<M>],
        name: &str,
        message: &M,
    ) -> Result<(), TryFromIntError> {
        let mut shared = None;
        for field in fields {
            let Some(value) = (field.get)(message) else {
                continue;
            };
            let name: &Arc<str> = shared.get_or_insert_with(|| name.into());
            self.0.push(PartRow {
                kind: field.kind,
                name: name.clone(),
                value: value.try_into()?,
            });
        }
        Ok(())
    }
}

/// The inverse of [`optional`]: adds the fields to `vitals`, which has its disks already.
pub(crate) fn add_optional(vitals: &mut Vitals, optional: &OptionalVitals) {
    let unreadable = &optional.unreadable_mounts;
    vitals.unreadable_mounts.clone_from(unreadable);
    vitals.spool_problem.clone_from(&optional.spool_problem);
    for part in &optional.parts {
        let value = part.value.cast_unsigned();
        if let Some(field) = field(DISK, part) {
            let mut disks = vitals.disks.iter_mut();
            let is_meant =
                |disk: &&mut Disk| *disk.mount_point == *part.name && (field.get)(disk).is_none();
            if let Some(disk) = disks.find(is_meant) {
                (field.set)(disk, value);
            }
        } else if let Some(field) = field(INTERFACE, part) {
            let interface = named(&mut vitals.interfaces, |one| &mut one.name, part);
            (field.set)(interface, value);
        } else if let Some(field) = field(BLOCK_DEVICE, part) {
            let device = named(&mut vitals.block_devices, |one| &mut one.name, part);
            (field.set)(device, value);
        } else if let Some(field) = field(PRESSURE, part) {
            (field.set)(vitals.pressure.get_or_insert_default(), value);
        } else if let Some(field) = field(HOST, part) {
            (field.set)(vitals, value);
        }
    }
}

fn field<'a, M>(fields: &'a [Field<M>], of: &PartRow) -> Option<&'a Field<M>> {
    fields.iter().find(|field| field.kind == of.kind)
}

/// The message that the part belongs to. The parts of one message follow each other.
fn named<'a, M: Default>(
    list: &'a mut Vec<M>,
    name: fn(&mut M) -> &mut String,
    of: &PartRow,
) -> &'a mut M {
    let known = list.last_mut().is_some_and(|last| **name(last) == *of.name);
    if !known {
        let mut new = M::default();
        name(&mut new).push_str(&of.name);
        list.push(new);
    }
    let last = list.len() - 1;
    &mut list[last]
}
