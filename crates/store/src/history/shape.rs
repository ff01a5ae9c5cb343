//! Lists of parts: what the values in the parts of a sample, or the figures of a rollup, are about.
//!
//! A list is stored once for the whole fleet, in `sample_shapes`. Its name is a part of its SHA-256, so a program that has
//! a list knows its name without asking the database, and no agent can make two lists with one name.

use std::{borrow::Cow, collections::HashSet};

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::values::vitals::PartKind;

/// How many parts a list has at most. A sample has fewer; a rollup of several lists might have more.
pub(crate) const MOST_PARTS: usize = 2048;

/// One part of a list, as `sample_shapes.parts` has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part<'a> {
    pub(crate) kind: Cow<'a, str>,
    pub(crate) name: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fs_type: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) counter: bool,
}

impl Part<'_> {
    /// Adds the part to the bytes that are hashed: each text after its length, so that different lists never have the same
    /// bytes. This can never change: it would give all lists new names.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let (kind, name) = (Some(&self.kind), Some(&self.name));
        for text in [kind, name, self.device.as_ref(), self.fs_type.as_ref()] {
            let length = text.map_or(u32::MAX, |text| text.len() as u32);
            to.extend_from_slice(&length.to_le_bytes());
            to.extend_from_slice(text.map_or(&[], |text| text.as_bytes()));
        }
        to.push(u8::from(self.counter));
    }

    /// What identifies a part within a sample.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.kind, &self.name)
    }
}

/// The name of the list whose parts were written one after the other by [`Part::write`].
pub(crate) fn name_of(list: &[u8]) -> Uuid {
    let hash = digest::digest(&digest::SHA256, list);
    let mut name = [0; 16];
    name.copy_from_slice(&hash.as_ref()[..16]);
    Uuid::from_bytes(name)
}

/// A list with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) name: Uuid,
    pub(crate) parts: Vec<Part<'static>>,
    /// Whether a kind and name are in it more than once.
    pub(crate) repeats: bool,
}

impl Shape {
    /// A list that was read from the database: `Json<Vec<Part>>`.
    pub(crate) fn stored(name: Uuid, parts: Vec<Part<'static>>) -> Shape {
        let keys: HashSet<_> = parts.iter().map(Part::key).collect();
        Shape {
            name,
            repeats: keys.len() < parts.len(),
            parts,
        }
    }

    /// The distinct parts of these lists, in the order in which they first appear.
    pub(crate) fn union<'a>(lists: impl IntoIterator<Item = &'a Shape>) -> Shape {
        let mut keys = HashSet::new();
        let all = lists.into_iter().flat_map(|list| &list.parts);
        let parts = all.filter(|part| keys.insert(part.key()));
        let parts: Vec<_> = parts.take(MOST_PARTS).cloned().collect();
        let mut bytes = Vec::new();
        parts.iter().for_each(|part| part.write(&mut bytes));
        Shape {
            name: name_of(&bytes),
            parts,
            repeats: false,
        }
    }

    /// Where the list has bytes in use of a file system with their total behind them: the place of the first.
    pub(crate) fn disks(&self) -> impl Iterator<Item = usize> {
        let (used, total) = (PartKind::DiskUsed.name(), PartKind::DiskTotal.name());
        let pairs = self.parts.windows(2).enumerate();
        let disks = pairs.filter(move |(_, pair)| {
            pair[0].kind == used && pair[1].kind == total && pair[0].name == pair[1].name
        });
        disks.map(|(place, _)| place)
    }
}

#[cfg(test)]
pub(crate) mod tests;
