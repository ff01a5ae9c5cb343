//! Chunks: the samples of one agent in one hour that have the same parts, with a column for each value.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{MOST, Result, ensure};

/// In microseconds.
pub(crate) const HOUR: i64 = 3_600_000_000;

/// Identifies a chunk among those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChunkKey {
    /// Hours since the epoch.
    pub(crate) hour: i64,
    pub(crate) agent_no: i32,
    pub(crate) shape: Uuid,
}

/// Declares the values of a sample once: they are a field each of [`LooseSample`], and a column each of [`Chunk`].
macro_rules! columns {
    ($($name:ident: $type:ty,)*) => {
        /// A row of `samples_open`.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct LooseSample {
            pub(crate) agent_no: i32,
            pub(crate) shape: Uuid,
            /// Microseconds since the epoch.
            pub(crate) at_micros: i64,
            pub(crate) seq: i64,
            /// `cpu_percent`, `load_1m`, `load_5m`, `load_15m`.
            pub(crate) reals: [f32; 4],
            $(pub(crate) $name: $type,)*
            /// In the order of the shape.
            pub(crate) parts: Vec<i64>,
        }

        /// The samples of a chunk in the order of their numbers. All columns have the same length.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct Chunk {
            pub(crate) seq: Vec<i64>,
            /// Microseconds from the middle of the hour.
            pub(crate) at: Vec<i32>,
            /// `cpu_percent`, `load_1m`, `load_5m`, `load_15m`.
            pub(crate) reals: [Vec<f32>; 4],
            $(pub(crate) $name: Vec<$type>,)*
            /// A column for each part of the shape.
            pub(crate) parts: Vec<Vec<i64>>,
        }

        impl Chunk {
            fn of(rows: &[LooseSample], parts: usize) -> Chunk {
                Chunk {
                    seq: rows.iter().map(|row| row.seq).collect(),
                    at: rows.iter().map(|row| time(row.at_micros).1).collect(),
                    reals: [0, 1, 2, 3].map(|n| rows.iter().map(|row| row.reals[n]).collect()),
                    $($name: rows.iter().map(|row| row.$name).collect(),)*
                    parts: (0..parts).map(|n| rows.iter().map(|row| row.parts[n]).collect()).collect(),
                }
            }

            fn append(&mut self, other: &Chunk) {
                self.seq.extend(&other.seq);
                self.at.extend(&other.at);
                self.reals.iter_mut().zip(&other.reals).for_each(|(mine, theirs)| mine.extend(theirs));
                $(self.$name.extend(&other.$name);)*
                self.parts.iter_mut().zip(&other.parts).for_each(|(mine, theirs)| mine.extend(theirs));
            }

            /// The samples at these places.
            fn pick(&self, places: &[usize]) -> Chunk {
                Chunk {
                    seq: pick(&self.seq, places),
                    at: pick(&self.at, places),
                    reals: self.reals.each_ref().map(|values| pick(values, places)),
                    $($name: pick(&self.$name, places),)*
                    parts: self.parts.iter().map(|values| pick(values, places)).collect(),
                }
            }

            fn lengths(&self) -> impl Iterator<Item = usize> {
                let reals = self.reals.iter().map(Vec::len);
                let parts = self.parts.iter().map(Vec::len);
                [self.at.len(), $(self.$name.len(),)*].into_iter().chain(reals).chain(parts)
            }
        }
    };
}

columns! {
    memory_used_bytes: i64,
    memory_total_bytes: i64,
    swap_used_bytes: i64,
    swap_total_bytes: i64,
    uptime_seconds: i64,
    process_count: i32,
    network_rx_bytes: i64,
    network_tx_bytes: i64,
}

impl LooseSample {
    fn key(&self) -> ChunkKey {
        let (agent_no, shape) = (self.agent_no, self.shape);
        let hour = time(self.at_micros).0;
        ChunkKey {
            hour,
            agent_no,
            shape,
        }
    }
}

/// The hour since the epoch, and the microseconds from its middle.
fn time(micros: i64) -> (i64, i32) {
    let within = micros.rem_euclid(HOUR) - HOUR / 2;
    (micros.div_euclid(HOUR), within as i32)
}

/// Microseconds since the epoch of a sample in a chunk.
pub(crate) fn at_micros(hour: i64, at: i32) -> i64 {
    hour.saturating_mul(HOUR)
        .saturating_add(HOUR / 2 + i64::from(at))
}

/// The chunks of one host's rows. A number that an agent and shape have twice in an hour is kept once.
pub(crate) fn chunks(mut rows: Vec<LooseSample>) -> Result<BTreeMap<ChunkKey, Chunk>> {
    rows.sort_unstable_by_key(|row| (row.key(), row.seq, row.at_micros));
    rows.dedup_by_key(|row| (row.key(), row.seq));
    let groups = rows.chunk_by(|a, b| a.key() == b.key());
    let chunk = |group: &[LooseSample]| {
        let parts = group[0].parts.len();
        let in_bounds = |value: &i64| (0..=MOST).contains(value);
        let same = |row: &LooseSample| row.parts.len() == parts && row.parts.iter().all(in_bounds);
        ensure(group.iter().all(same), "the parts of a row")?;
        Ok((group[0].key(), Chunk::of(group, parts)))
    };
    groups.map(chunk).collect()
}

fn pick<T: Copy>(values: &[T], places: &[usize]) -> Vec<T> {
    places.iter().map(|place| values[*place]).collect()
}

impl Chunk {
    /// The samples of both chunks, which have the same key. Of a number that both have, its own sample is kept.
    pub(crate) fn merge(mut self, other: &Chunk) -> Chunk {
        self.append(other);
        let mut places: Vec<usize> = (0..self.seq.len()).collect();
        places.sort_by_key(|place| self.seq[*place]);
        places.dedup_by_key(|place| self.seq[*place]);
        self.pick(&places)
    }

    /// Whether it can be a stored chunk of a shape with this many parts. All functions here expect that.
    pub(crate) fn validate(&self, parts: usize) -> Result<()> {
        let samples = self.seq.len();
        let columns = self.lengths().all(|length| length == samples);
        ensure(samples > 0 && columns, "the length of a column")?;
        ensure(self.parts.len() == parts, "the number of parts")?;
        let rises = self.seq.windows(2).all(|pair| pair[0] < pair[1]);
        ensure(rises, "the numbers of the samples")?;
        let within = |at: &i32| time(i64::from(*at) + HOUR / 2).0 == 0;
        ensure(self.at.iter().all(within), "a time outside of the hour")
    }

    /// The lowest number and, unless they are consecutive, all numbers without it: as they are stored.
    pub(crate) fn stored_seqs(&self) -> (i64, Option<Vec<i64>>) {
        let first = self.seq.first().copied().unwrap_or_default();
        let last = self.seq.last().copied().unwrap_or_default();
        let consecutive = last.wrapping_sub(first) + 1 == self.seq.len() as i64;
        let without = || self.seq.iter().map(|seq| seq - first).collect();
        (first, (!consecutive).then(without))
    }

    /// `uptime_seconds` as it is stored: without the seconds in `at`, because values that resemble each other compress
    /// best.
    pub(crate) fn stored_uptime(&self) -> Vec<i64> {
        let pairs = self.uptime_seconds.iter().zip(&self.at);
        pairs
            .map(|(uptime, at)| uptime.wrapping_sub(seconds(*at)))
            .collect()
    }
}

/// The numbers of stored samples; the opposite of [`Chunk::stored_seqs`].
pub(crate) fn seqs(first: i64, without: Option<Vec<i64>>, samples: usize) -> Vec<i64> {
    match without {
        Some(without) => without.iter().map(|seq| seq.wrapping_add(first)).collect(),
        None => (0..samples as i64).map(|n| n.wrapping_add(first)).collect(),
    }
}

/// The uptime of a stored sample; the opposite of [`Chunk::stored_uptime`].
pub(crate) fn uptime(stored: i64, at: i32) -> i64 {
    stored.wrapping_add(seconds(at))
}

/// The place of the newest sample of a chunk: among those of one moment, the one with the highest number.
pub(crate) fn newest(at: &[i32]) -> Option<usize> {
    (0..at.len()).max_by_key(|place| at[*place])
}

fn seconds(at: i32) -> i64 {
    i64::from(at / 1_000_000)
}

#[cfg(test)]
pub(crate) mod tests;
