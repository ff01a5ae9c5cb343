//! The parts of a sample: the values, which are stored with it, and its shape, the list of what they
//! are, which is stored once for all samples that have the same.
//!
//! A list is named by its SHA-256 (`history/shape.rs`), which costs more than all else that is done with a
//! sample. So the names of the lists that were seen lately are kept under a hash that costs little:
//! SipHash with 128 bits. Its key is random and never leaves the process, so no agent can make two lists
//! that collide: that takes 2⁶⁴ lists.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{LazyLock, PoisonError, RwLock},
};

use serde_json::Value;
use siphasher::sip128::SipHasher13;
use uuid::Uuid;

use super::SampleRow;
use crate::{
    history::shape::{Part, name_of},
    values::vitals::{Measure, PartKind},
};

/// The names of lists by their hashes.
struct Names {
    key: [u64; 2],
    known: RwLock<HashMap<u128, Uuid>>,
}

/// About 4 MB. When as many are known, all are forgotten, and those in use are hashed again.
const MOST_NAMES: usize = 65_536;

static NAMES: LazyLock<Names> = LazyLock::new(|| Names {
    key: rand::random(),
    known: RwLock::default(),
});

impl Names {
    fn name(&self, list: &[u8]) -> Uuid {
        let hash = self.hash(list);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.get(&hash) {
            return *name;
        }
        drop(known);
        let name = name_of(list);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_NAMES {
            known.clear();
        }
        known.insert(hash, name);
        name
    }

    fn hash(&self, list: &[u8]) -> u128 {
        let hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.hash(list).as_u128()
    }
}

fn part<'a>(kind: PartKind, name: &'a str) -> Part<'a> {
    Part {
        kind: Cow::Borrowed(kind.name()),
        name: Cow::Borrowed(name),
        device: None,
        fs_type: None,
        counter: kind.measure() == Measure::Counter,
    }
}

impl SampleRow {
    /// In the order of the list: each disk, directly followed by its size, and the optional parts.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let disks = self.disks.iter().flat_map(|disk| {
            let used = Part {
                device: Some(Cow::Borrowed(&disk.device)),
                fs_type: Some(Cow::Borrowed(&disk.fs_type)),
                ..part(PartKind::DiskUsed, &disk.mount_point)
            };
            [used, part(PartKind::DiskTotal, &disk.mount_point)]
        });
        let optional = self.optional.iter().flat_map(|optional| &optional.parts);
        disks.chain(optional.map(|of| part(of.kind, &of.name)))
    }

    /// The name of the list of parts.
    pub(super) fn shape(&self) -> Uuid {
        let mut list = Vec::with_capacity(2048);
        self.parts().for_each(|part| part.write(&mut list));
        NAMES.name(&list)
    }

    /// The list of parts, as `sample_shapes` has it.
    pub(super) fn shape_parts(&self) -> Value {
        let parts: Vec<Part<'_>> = self.parts().collect();
        serde_json::json!(parts)
    }

    /// The values, in the order of the list.
    pub(super) fn part_values(&self) -> impl Iterator<Item = i64> {
        let disks = self.disks.iter();
        let disks = disks.flat_map(|disk| [disk.used_bytes, disk.total_bytes]);
        let optional = self.optional.iter().flat_map(|optional| &optional.parts);
        disks.chain(optional.map(|part| part.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_same_name_whether_it_is_known_or_not() {
        let names = Names {
            key: [1, 2],
            known: RwLock::default(),
        };
        for list in [b"one".as_slice(), b"two", b"one"] {
            assert_eq!(names.name(list), name_of(list));
        }
        assert_eq!(names.known.into_inner().unwrap().len(), 2);
    }

    #[test]
    fn the_names_that_are_kept_are_bounded() {
        let known = (0..MOST_NAMES as u128).map(|hash| (hash, Uuid::nil()));
        let names = Names {
            key: [1, 2],
            known: RwLock::new(known.collect()),
        };
        names.name(b"one more");
        assert_eq!(names.known.into_inner().unwrap().len(), 1);
    }
}
