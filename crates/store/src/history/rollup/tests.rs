mod oracle;
mod properties;

use std::collections::BTreeMap;

use super::*;
use crate::history::{
    MOST,
    chunk::{ChunkKey, LooseSample, chunks, tests::row},
    shape::tests::shape,
};

/// The hour from second 3600 on, after the hour before it.
fn roll_up(shapes: &[Shape], chunks: &BTreeMap<ChunkKey, Chunk>) -> Option<Rollup> {
    let source = |(key, chunk)| Source {
        agent_no: ChunkKey::clone(key).agent_no,
        shape: shapes.iter().find(|one| one.name == key.shape).unwrap(),
        chunk,
    };
    let of_hour = |hour| chunks.iter().filter(move |(key, _)| key.hour == hour);
    let of = |hour| of_hour(hour).map(source).collect::<Vec<Source<'_>>>();
    rollup(1, &of(1), Last::of(0, &of(0)).as_ref())
}

/// The numbers of a text: those of one sample are followed by a comma.
fn numbers(text: &str) -> impl Iterator<Item = Vec<i64>> {
    let number = |text: &str| match text {
        "MOST" => MOST,
        text => text.parse().unwrap(),
    };
    let samples = text.split(", ");
    samples.map(move |sample| sample.split(' ').map(number).collect())
}

/// Of samples with these parts.
fn rolled_up(shapes: &[Shape], samples: Vec<(usize, &[i64], LooseSample)>) -> Rollup {
    let samples = samples.into_iter().map(|(shape, parts, row)| LooseSample {
        shape: shapes[shape].name,
        parts: parts.to_vec(),
        ..row
    });
    roll_up(shapes, &chunks(samples.collect()).unwrap()).unwrap()
}

/// Of samples that have the agent, the second, the shape and its parts.
fn parts_rolled_up(shapes: &[Shape], samples: &str) -> Rollup {
    let samples: Vec<_> = numbers(samples).collect();
    let sample = |sample: &'_ Vec<i64>| LooseSample {
        agent_no: sample[0] as i32,
        ..row(sample[1], sample[1])
    };
    let samples = samples
        .iter()
        .map(|numbers| (numbers[2] as usize, &numbers[3..], sample(numbers)));
    rolled_up(shapes, samples.collect())
}

/// The figures of all parts, a counter's as one number.
fn figures(rollup: &Rollup) -> Vec<Vec<i64>> {
    let figures = rollup.figures.iter();
    figures
        .map(|figure| figure.iter().flatten().copied().collect())
        .collect()
}

/// As `SELECT (sum::numeric / count)::bigint` does.
#[test]
fn means_are_rounded_half_away_from_zero() {
    for (values, expected) in [
        (&[1, 2][..], 2),
        (&[2, 3], 3),
        (&[0, 0, 1], 0),
        (&[0, 1, 1], 1),
        (&[-1, -2], -2),
        (&[0, -1, -1, 0], -1),
        (&[MOST, MOST - 1], MOST),
        (&[i64::MAX, i64::MAX], i64::MAX),
        (&[i64::MIN, i64::MIN], i64::MIN),
    ] {
        let mean = Gauge::of(values.iter().copied()).span().mean;
        assert_eq!(mean, expected, "{values:?}");
    }
}

#[test]
fn counters_go_on_and_begin_at_0_after_a_boot() {
    // Second, uptime and value of each reading; the increase in the second hour of a total, and of one thing.
    for (text, total, own) in [
        ("3600 20 150", 0, 0),
        ("3600 20 150, 3700 30 180", 30, 30),
        ("3600 90 100, 3700 90 110", 10, 10),
        ("3000 10 100, 3600 20 150, 3700 30 155", 55, 55),
        // After a boot the value may be lower or higher.
        ("3000 90 100, 3600 5 30, 3700 6 31", 31, 31),
        ("3000 90 100, 3600 5 130", 130, 130),
        ("3600 90 100, 3700 91 110, 3800 4 500", 510, 510),
        // It falls without a boot.
        ("3000 10 100, 3600 11 40, 3700 12 45", 5, 45),
        // The clock was set back.
        ("3100 10 7, 3000 10 100, 3600 11 8", 1, 1),
        ("3700 11 8, 3600 10 3", 5, 5),
        (
            "3600 9 0, 3601 8 MOST, 3602 7 MOST, 3603 6 MOST",
            i64::MAX,
            i64::MAX,
        ),
    ] {
        let readings: Vec<_> = numbers(text).collect();
        let sample = |(seq, reading): (i64, &Vec<i64>)| LooseSample {
            uptime_seconds: reading[1],
            network_rx_bytes: reading[2],
            network_tx_bytes: 0,
            ..row(reading[0], seq)
        };
        let samples = (1..)
            .zip(&readings)
            .map(|(seq, reading)| (0, &reading[2..], sample((seq, reading))));
        let found = rolled_up(&[shape(&[("c", "eth0")])], samples.collect());
        assert_eq!(found.network_rx_bytes_increase, total, "{text}");
        assert_eq!(found.network_tx_bytes_increase, 0, "{text}");
        assert_eq!(found.figures, [[None, Some(own), None]], "{text}");
        let at = readings.iter().map(|reading| reading[0] * 1_000_000);
        let before = at.clone().filter(|at| *at < 3_600_000_000).max();
        assert_eq!(found.counters_from, before.or(at.min()).unwrap(), "{text}");
    }
}

#[test]
fn a_counter_goes_on_from_its_latest_reading_of_any_agent_and_list() {
    let both = shape(&[("c", "eth1"), ("c", "eth0")]);
    let lists = [shape(&[]), shape(&[("c", "eth0")]), both];
    let hour = "1 3600 1 111, 2 3600 2 9 115, 2 3601 1 116, 1 3700 2 11 120";
    let before = "1 100 2 5 100, 2 3500 1 110, 1 3501 0";
    let found = parts_rolled_up(&lists, &format!("{before}, {hour}"));
    assert_eq!(figures(&found), [[6], [10]]);
    assert_eq!((found.shape, found.own_list), (lists[2].name, None));
    let appears = parts_rolled_up(&lists, &format!("1 3501 0, {hour}"));
    assert_eq!(figures(&appears), [[2], [9]], "from the first reading");
}

#[test]
fn figures_are_in_the_order_of_the_list_or_of_a_list_of_their_own() {
    let (a, b, x, z) = (("g", "a"), ("g", "b"), ("c", "x"), ("g", "z"));
    let lists = [shape(&[b, x, a]), shape(&[a, z]), shape(&[a, x, a, x])];
    for (samples, list, expected) in [
        (
            "1 3600 0 4 10 7, 1 3601 0 5 13 7, 1 3602 0 5 20 7",
            &[b, x, a][..],
            &[&[4, 5, 5][..], &[10], &[7]][..],
        ),
        (
            "1 3600 0 4 10 7, 1 3601 1 1 0, 1 3602 0 5 12 7",
            &[b, x, a, z],
            &[&[4, 5, 5], &[2], &[1, 5, 7], &[0]],
        ),
        (
            "1 3600 2 4 10 6 11, 1 3601 2 5 12 5 13",
            &[a, x],
            &[&[4, 5, 6], &[3]],
        ),
    ] {
        let found = parts_rolled_up(&lists, samples);
        assert_eq!(figures(&found), expected, "{samples}");
        let list = shape(list);
        let own = (!lists.contains(&list)).then_some(&list);
        assert_eq!((found.shape, found.own_list.as_ref()), (list.name, own));
    }
}

#[test]
fn an_hour_at_all_limits_is_rolled_up() {
    let names: Vec<String> = (0..838).map(|n| n.to_string()).collect();
    let kinds = ["c", "g"].into_iter().cycle();
    let parts: Vec<_> = kinds.zip(names.iter().map(String::as_str)).collect();
    let extremes = [([0; 838], 0, 0.0), ([MOST; 838], i32::MAX, f32::MAX)];
    let extreme = |n: i64| {
        let (parts, process_count, real) = &extremes[n as usize % 2];
        let row = LooseSample {
            reals: [*real; 4],
            memory_used_bytes: parts[0],
            uptime_seconds: parts[0],
            process_count: *process_count,
            network_rx_bytes: parts[0],
            network_tx_bytes: MOST - parts[0],
            at_micros: 3_600_000_000 + n * 499_999,
            ..row(0, n)
        };
        (0, &parts[..], row)
    };
    let found = rolled_up(&[shape(&parts)], (0..7200).map(extreme).collect());
    assert_eq!(found.sample_count, 7200);
    let (load, most) = (found.reals[1], f64::from(f32::MAX));
    assert!(load.least == 0.0 && load.greatest == most && (load.mean / most - 0.5).abs() < 1e-9);
    assert_eq!(found.memory_used_bytes, span(0, MOST / 2, MOST));
    assert_eq!(found.process_count, span(0, 1 << 30, i32::MAX.into()));
    assert_eq!(found.network_rx_bytes_increase, i64::MAX, "3600 rises");
    assert_eq!(found.network_tx_bytes_increase, i64::MAX, "3599 boots");
    let gauge = [0, MOST / 2, MOST].map(Some);
    let expected = [[None, Some(i64::MAX), None], gauge].repeat(419);
    assert_eq!(found.figures, expected);
}
