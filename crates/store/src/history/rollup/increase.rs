//! Increases of counters, from the last sample of the hour before to the last of the hour.

use std::collections::HashMap;

use super::Source;
use crate::history::chunk::{at_micros, newest};

/// A value of a counter, and the uptime when it was read.
pub(super) type Reading = (i64, i64);

/// What the increases of an hour start from: the newest sample of the hour before, and the newest reading of each counter in
/// that hour.
#[derive(Clone, Debug)]
pub(crate) struct Last<'a> {
    pub(super) at_micros: i64,
    pub(super) network_rx: Reading,
    pub(super) network_tx: Reading,
    /// By kind and name.
    counters: HashMap<(&'a str, &'a str), Reading>,
}

impl<'a> Last<'a> {
    /// The last readings of all chunks of an hour. Within a chunk all samples have the same parts, so the chunk's newest sample
    /// has its newest readings, and stands for the chunk. Only the columns of times, numbers, uptimes, network counters and parts are read.
    pub(crate) fn of(hour: i64, of: &[Source<'a>]) -> Option<Last<'a>> {
        let newest = of.iter().filter_map(|source| {
            let sample = newest(&source.chunk.at)?;
            Some((source, sample))
        });
        let mut newest: Vec<(&Source<'a>, usize)> = newest.collect();
        newest.sort_by_key(|(source, sample)| source.order(*sample));
        let readings = newest.iter().flat_map(|(source, sample)| {
            let parts = source.shape.parts.iter().zip(&source.chunk.parts);
            let counters = parts.filter(|(part, _)| part.counter);
            let uptime = source.chunk.uptime_seconds[*sample];
            counters.map(move |(part, values)| (part.key(), (values[*sample], uptime)))
        });
        let (source, last) = *newest.last()?;
        let (chunk, uptime) = (source.chunk, source.chunk.uptime_seconds[last]);
        Some(Last {
            at_micros: at_micros(hour, chunk.at[last]),
            network_rx: (chunk.network_rx_bytes[last], uptime),
            network_tx: (chunk.network_tx_bytes[last], uptime),
            counters: readings.collect(),
        })
    }

    pub(super) fn counter(&self, key: (&str, &str)) -> Option<Reading> {
        self.counters.get(&key).copied()
    }
}

/// What a counter adds where it falls without a boot.
#[derive(Clone, Copy)]
pub(super) enum OnFall {
    /// A total of several counters: one of them is gone, and what is left says nothing about an increase.
    AddNothing,
    /// A counter of one thing: it began again at 0.
    CountFromZero,
}

/// Adds up the readings of a counter. Readings are added in the order of time.
#[derive(Clone, Copy)]
pub(super) struct Increase {
    before: Option<Reading>,
    total: i128,
}

impl Increase {
    pub(super) fn from(before: Option<Reading>) -> Increase {
        Increase { before, total: 0 }
    }

    /// After a boot, which is when the uptime fell, a counter counts from 0, whatever its value was before.
    pub(super) fn add(&mut self, value: i64, uptime: i64, on_fall: OnFall) {
        self.total += match (self.before, on_fall) {
            (None, _) => 0,
            (Some((_, up_before)), _) if uptime < up_before => i128::from(value),
            (Some((before, _)), _) if value >= before => i128::from(value) - i128::from(before),
            (Some(_), OnFall::AddNothing) => 0,
            (Some(_), OnFall::CountFromZero) => i128::from(value),
        };
        self.before = Some((value, uptime));
    }

    pub(super) fn total(&self) -> i64 {
        i64::try_from(self.total).unwrap_or(i64::MAX)
    }
}
