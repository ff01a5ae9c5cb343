//! The rollup of one host's hour, computed from all of its samples.
//!
//! **Order.** Increases are formed between neighbours in the order of time; samples of one moment are in the order of their
//! agents' numbers, then of their own.
//!
//! **Parts** are the same if their kind and name are, whichever agent or list they come from. A rollup refers to the list of
//! its samples, if they have one list that names no part twice, or if one of their lists has all parts. Otherwise it has
//! a list of its own.

mod figures;
mod increase;

use uuid::Uuid;

use super::{
    chunk::{Chunk, at_micros},
    shape::Shape,
};
use figures::Figures;
pub(crate) use increase::Last;
use increase::{Increase, OnFall};

/// A chunk of the hour: valid for its shape, see [`Chunk::validate`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) agent_no: i32,
    pub(crate) shape: &'a Shape,
    pub(crate) chunk: &'a Chunk,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span<T> {
    pub(crate) least: T,
    pub(crate) mean: T,
    pub(crate) greatest: T,
}

fn span<T>(least: T, mean: T, greatest: T) -> Span<T> {
    Span {
        least,
        mean,
        greatest,
    }
}

/// The columns of `host_rollups`. Times are in microseconds since the epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rollup {
    pub(crate) first_at: i64,
    pub(crate) last_at: i64,
    pub(crate) counters_from: i64,
    /// `cpu_percent`, `load_1m`, `load_5m`, `load_15m`.
    pub(crate) reals: [Span<f64>; 4],
    pub(crate) memory_used_bytes: Span<i64>,
    pub(crate) memory_total_bytes: i64,
    pub(crate) swap_used_bytes: Span<i64>,
    pub(crate) swap_total_bytes: i64,
    pub(crate) process_count: Span<i64>,
    pub(crate) network_rx_bytes_increase: i64,
    pub(crate) network_tx_bytes_increase: i64,
    /// The percentage and the mount point.
    pub(crate) fullest_disk: Option<(f64, String)>,
    pub(crate) sample_count: i32,
    /// The list of parts that `figures` is about.
    pub(crate) shape: Uuid,
    /// That list, if no sample has it. It must be stored.
    pub(crate) own_list: Option<Shape>,
    /// For each part {least, mean, greatest} of a gauge, {value, -, -} of one that did not change, {-, increase, -} of a counter.
    pub(crate) figures: Vec<[Option<i64>; 3]>,
}

/// The rollup of the hour, which is counted from the epoch, if it has samples. `before` is of the hour before it.
pub(crate) fn rollup(hour: i64, of: &[Source<'_>], before: Option<&Last<'_>>) -> Option<Rollup> {
    let order = in_order(of);
    let at = |(source, sample): &(usize, usize)| at_micros(hour, of[*source].chunk.at[*sample]);
    let (first_at, last_at) = (at(order.first()?), at(order.last()?));
    let (rx, tx) = network(of, &order, before);
    let figures = Figures::of(of, &order, before);
    let processes = of.iter().flat_map(|source| &source.chunk.process_count);
    Some(Rollup {
        first_at,
        last_at,
        counters_from: before.map_or(first_at, |last| last.at_micros),
        reals: [0, 1, 2, 3].map(|n| real(of, n)),
        memory_used_bytes: Gauge::of(all(of, |chunk| &chunk.memory_used_bytes)).span(),
        memory_total_bytes: all(of, |chunk| &chunk.memory_total_bytes).max()?,
        swap_used_bytes: Gauge::of(all(of, |chunk| &chunk.swap_used_bytes)).span(),
        swap_total_bytes: all(of, |chunk| &chunk.swap_total_bytes).max()?,
        process_count: Gauge::of(processes.map(|count| i64::from(*count))).span(),
        network_rx_bytes_increase: rx,
        network_tx_bytes_increase: tx,
        fullest_disk: fullest_disk(of),
        sample_count: i32::try_from(order.len()).unwrap_or(i32::MAX),
        shape: figures.shape,
        own_list: figures.own_list,
        figures: figures.figures,
    })
}

impl Source<'_> {
    /// The sort key of a sample within its hour.
    fn order(&self, sample: usize) -> (i32, i32, i64) {
        (self.chunk.at[sample], self.agent_no, self.chunk.seq[sample])
    }
}

/// All samples in their order: which source, and which place in its columns.
fn in_order(of: &[Source<'_>]) -> Vec<(usize, usize)> {
    let samples = of.iter().map(|source| source.chunk.at.len());
    let mut order = Vec::with_capacity(samples.clone().sum());
    for (source, samples) in samples.enumerate() {
        order.extend((0..samples).map(|sample| (source, sample)));
    }
    order.sort_by_key(|(source, sample)| of[*source].order(*sample));
    order
}

/// The increases of the totals. A total that falls without a boot has lost an interface.
fn network(of: &[Source<'_>], order: &[(usize, usize)], before: Option<&Last<'_>>) -> (i64, i64) {
    let mut rx = Increase::from(before.map(|last| last.network_rx));
    let mut tx = Increase::from(before.map(|last| last.network_tx));
    for (source, sample) in order {
        let chunk = of[*source].chunk;
        let uptime = chunk.uptime_seconds[*sample];
        rx.add(chunk.network_rx_bytes[*sample], uptime, OnFall::AddNothing);
        tx.add(chunk.network_tx_bytes[*sample], uptime, OnFall::AddNothing);
    }
    (rx.total(), tx.total())
}

fn real(of: &[Source<'_>], column: usize) -> Span<f64> {
    let values = of.iter().flat_map(|source| &source.chunk.reals[column]);
    let values = values.map(|value| f64::from(*value));
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let mean = values.clone().sum::<f64>() / values.clone().count() as f64;
    span(least, mean, values.fold(f64::NEG_INFINITY, f64::max))
}

fn all<'a>(of: &[Source<'a>], column: fn(&Chunk) -> &[i64]) -> impl Iterator<Item = i64> {
    let values = of.iter().flat_map(move |source| column(source.chunk));
    values.copied()
}

/// Collects the values of a gauge.
#[derive(Clone, Copy)]
struct Gauge {
    least: i64,
    sum: i128,
    greatest: i64,
    values: i128,
}

impl Gauge {
    const NONE: Gauge = Gauge {
        least: i64::MAX,
        sum: 0,
        greatest: i64::MIN,
        values: 0,
    };

    fn of(values: impl Iterator<Item = i64>) -> Gauge {
        let mut gauge = Gauge::NONE;
        values.for_each(|value| gauge.add(value));
        gauge
    }

    fn add(&mut self, value: i64) {
        self.least = self.least.min(value);
        self.greatest = self.greatest.max(value);
        self.sum += i128::from(value);
        self.values += 1;
    }

    /// The mean is rounded as PostgreSQL rounds a numeric: half away from zero.
    fn span(&self) -> Span<i64> {
        let (twice, values) = (2 * self.sum.abs(), self.values.max(1));
        let mean = (twice + values) / (2 * values) * self.sum.signum();
        let mean = i64::try_from(mean).unwrap_or(i64::MAX);
        span(self.least, mean, self.greatest)
    }
}

/// The greatest use of a file system; of several that are as full, the one with the lowest name.
fn fullest_disk(of: &[Source<'_>]) -> Option<(f64, String)> {
    let disks = of.iter().flat_map(|source| {
        let parts = &source.chunk.parts;
        let disks = source.shape.disks();
        disks.filter_map(|used| {
            let percent = greatest_use(&parts[used], &parts[used + 1])?;
            Some((percent, &*source.shape.parts[used].name))
        })
    });
    let fullest = disks.reduce(|most, disk| {
        let fuller = disk.0 > most.0 || (disk.0 == most.0 && disk.1 < most.1);
        if fuller { disk } else { most }
    });
    fullest.map(|(percent, name)| (percent, name.to_owned()))
}

/// In percent, at most 100. A file system without size has none.
fn greatest_use(used: &[i64], total: &[i64]) -> Option<f64> {
    let sized = used.iter().zip(total).filter(|(_, total)| **total > 0);
    let percent = sized.map(|(used, total)| (100.0 * *used as f64 / *total as f64).min(100.0));
    percent.reduce(f64::max)
}

#[cfg(test)]
mod tests;
