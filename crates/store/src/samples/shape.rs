//! The parts of a sample: the values, which are stored with it, and its shape, the list of what they
//! are, which is stored once for all samples of a host that have the same.
//!
//! A shape is named by a hash of the list. So whoever has a sample knows the name without asking the
//! database. Two lists with the same hash would need 2³² lists of one host; then the values of one would
//! be read with the names of the other. A host that makes two such lists on purpose spoils its own history
//! only, so the hash need not withstand that. It is computed for every sample: SHA-256 took 5 % of the
//! service's CPU at saturation.

use serde::Serialize;
use serde_json::Value;
use siphasher::sip::SipHasher13;

use super::SampleRow;
use crate::vitals::{Measure, PartKind};

/// A part with what is known of it besides its value.
#[derive(Serialize)]
struct Part<'a> {
    kind: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs_type: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    counter: bool,
    #[serde(skip)]
    value: i64,
}

impl<'a> Part<'a> {
    fn new(kind: PartKind, name: &'a str, value: i64) -> Part<'a> {
        Part {
            kind: kind.name(),
            name,
            device: None,
            fs_type: None,
            counter: kind.measure() == Measure::Counter,
            value,
        }
    }
}

impl SampleRow {
    /// In the order of the list: each disk, directly followed by its size, and the optional parts.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let disks = self.disks.iter().flat_map(|disk| {
            let used = Part {
                device: Some(&disk.device),
                fs_type: Some(&disk.fs_type),
                ..Part::new(PartKind::DiskUsed, &disk.mount_point, disk.used_bytes)
            };
            let total = Part::new(PartKind::DiskTotal, &disk.mount_point, disk.total_bytes);
            [used, total]
        });
        let optional = self.optional.iter().flat_map(|optional| &optional.parts);
        disks.chain(optional.map(|part| Part::new(part.kind, &part.name, part.value)))
    }

    /// The name of the list of parts.
    pub(super) fn shape(&self) -> i64 {
        let mut list = Vec::with_capacity(2048);
        self.parts().for_each(|part| {
            for text in [Some(part.kind), Some(part.name), part.device, part.fs_type] {
                list.extend_from_slice(text.unwrap_or_default().as_bytes());
                list.push(0);
            }
        });
        SipHasher13::new().hash(&list).cast_signed()
    }

    /// The list of parts, as `sample_shapes` has it.
    pub(super) fn shape_parts(&self) -> Value {
        let parts: Vec<Part<'_>> = self.parts().collect();
        serde_json::json!(parts)
    }

    /// The values, in the order of the list.
    pub(super) fn part_values(&self) -> impl Iterator<Item = i64> {
        self.parts().map(|part| part.value)
    }
}
