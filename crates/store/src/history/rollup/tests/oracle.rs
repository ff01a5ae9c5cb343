//! A second implementation of the rollup, as simple as possible: all samples in a list, everything else in maps.

use std::collections::BTreeMap;

use super::{Rollup, Span};
use crate::history::{chunk::LooseSample, shape::Shape};

const HOUR: i64 = 3_600_000_000;

/// By kind and name.
pub(super) type Figures = BTreeMap<(String, String), [Option<i64>; 3]>;
type Readings<'a> = Vec<(&'a LooseSample, i64)>;

/// The second hour of all samples. The shape and its figures are by name.
pub(super) fn expected(shapes: &[Shape], rows: &[LooseSample]) -> Option<(Rollup, Figures)> {
    let mut rows: Vec<&LooseSample> = rows.iter().collect();
    rows.sort_by_key(|row| (row.at_micros, row.agent_no, row.seq));
    let hour: Vec<_> = rows.iter().filter(|row| row.at_micros >= HOUR).collect();
    let first_at = hour.first()?.at_micros;
    let before = rows.iter().rfind(|row| row.at_micros < HOUR);
    let values = |of: fn(&LooseSample) -> i64| hour.iter().map(|row| of(row)).collect::<Vec<_>>();
    let most = |of: fn(&LooseSample) -> i64| values(of).into_iter().max().unwrap();
    let readings = |of: fn(&LooseSample) -> i64| rows.iter().map(|row| (*row, of(row))).collect();
    let rollup = Rollup {
        first_at,
        last_at: hour.last()?.at_micros,
        counters_from: before.map_or(first_at, |row| row.at_micros),
        reals: [0, 1, 2, 3].map(|n| real(hour.iter().map(|row| row.reals[n].into()).collect())),
        memory_used_bytes: whole(values(|row| row.memory_used_bytes)),
        memory_total_bytes: most(|row| row.memory_total_bytes),
        swap_used_bytes: whole(values(|row| row.swap_used_bytes)),
        swap_total_bytes: most(|row| row.swap_total_bytes),
        process_count: whole(values(|row| row.process_count.into())),
        network_rx_bytes_increase: increase(readings(|row| row.network_rx_bytes), false),
        network_tx_bytes_increase: increase(readings(|row| row.network_tx_bytes), false),
        fullest_disk: fullest_disk(shapes, &rows),
        sample_count: hour.len() as i32,
        shape: uuid::Uuid::nil(),
        own_list: None,
        figures: vec![],
    };
    Some((rollup, figures(shapes, &rows)))
}

fn real(mut values: Vec<f64>) -> Span<f64> {
    values.sort_by(f64::total_cmp);
    Span {
        least: values[0],
        mean: values.iter().sum::<f64>() / values.len() as f64,
        greatest: values[values.len() - 1],
    }
}

fn whole(mut values: Vec<i64>) -> Span<i64> {
    values.sort_unstable();
    let count = values.len() as i128;
    let sum = values.iter().map(|value| i128::from(*value)).sum::<i128>();
    let up = i64::from(2 * (sum % count) >= count);
    Span {
        least: values[0],
        mean: (sum / count) as i64 + up,
        greatest: values[values.len() - 1],
    }
}

/// What the readings of the second hour add to the ones before them. `own` is a counter of one thing.
fn increase(readings: Readings<'_>, own: bool) -> i64 {
    let mut total = 0_u128;
    for pair in readings.windows(2) {
        let ((before, old), (now, new)) = (pair[0], pair[1]);
        let booted = now.uptime_seconds < before.uptime_seconds;
        if now.at_micros < HOUR {
            continue;
        }
        if booted || (own && new < old) {
            total += new as u128;
        } else if new > old {
            total += (new - old) as u128;
        }
    }
    total.min(i64::MAX as u128) as i64
}

/// Kind and name, whether it is a counter, and the value.
fn parts(shapes: &[Shape], row: &LooseSample) -> Vec<((String, String), bool, i64)> {
    let list = shapes.iter().find(|shape| shape.name == row.shape);
    let parts = list.unwrap().parts.iter().zip(&row.parts);
    let part = parts.map(|(part, value)| {
        let key = (part.kind.to_string(), part.name.to_string());
        (key, part.counter, *value)
    });
    part.collect()
}

fn fullest_disk(shapes: &[Shape], rows: &[&LooseSample]) -> Option<(f64, String)> {
    let mut disks = Vec::new();
    for row in rows.iter().filter(|row| row.at_micros >= HOUR) {
        for pair in parts(shapes, row).windows(2) {
            let ((kind, name), used, total) = (&pair[0].0, pair[0].2, pair[1].2);
            if kind == "disk_used" && total > 0 {
                let percent = 100.0 * used as f64 / total as f64;
                disks.push((percent.min(100.0), name.clone()));
            }
        }
    }
    disks.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    disks.into_iter().next()
}

fn figures(shapes: &[Shape], rows: &[&LooseSample]) -> Figures {
    let mut series: BTreeMap<_, Readings<'_>> = BTreeMap::new();
    for row in rows {
        for (key, counter, value) in parts(shapes, row) {
            series.entry((key, counter)).or_default().push((row, value));
        }
    }
    series.retain(|_, readings| readings.last().unwrap().0.at_micros >= HOUR);
    let figure = |((key, counter), readings): (_, Readings<'_>)| {
        let hour = readings.iter().filter(|(row, _)| row.at_micros >= HOUR);
        let span = whole(hour.map(|(_, value)| *value).collect());
        let figure = match counter {
            true => [None, Some(increase(readings, true)), None],
            false if span.least == span.greatest => [Some(span.least), None, None],
            false => [span.least, span.mean, span.greatest].map(Some),
        };
        (key, figure)
    };
    series.into_iter().map(figure).collect()
}
