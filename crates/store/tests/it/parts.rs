//! Parts: their values and their hourly figures are the same from rows and from packed chunks, and a damaged chunk makes no query fail.

use anyhow::{Context, Result, ensure};
use proptest::prelude::*;
use svc_store::{OptionalVitals, PartKind, PartRow, SampleRow};

use crate::{
    fixtures::{DAY, TestAgent, after, compact, hours_ago, sample, world},
    support::{TestStore, property},
};

const MINUTE: i64 = 60_000;
/// The greatest number that an agent may send.
const MOST: i64 = 1 << 62;

/// Three counters and a gauge.
const PARTS: [(PartKind, &str); 4] = [
    (PartKind::InterfaceRx, "eth0"),
    (PartKind::DeviceWrittenBytes, "sda"),
    (PartKind::DiskInodesUsed, "/"),
    (PartKind::PressureCpuSome, ""),
];

/// How the values of a part go from sample to sample.
#[derive(Clone, Copy, Debug)]
enum Course {
    Constant,
    /// Up and down by at most so many units.
    Steps {
        unit: i64,
        most: i64,
    },
    /// From 0 to the greatest number that an agent may send, and back.
    Absurd,
}

/// Samples of one agent in the order of their numbers.
#[derive(Clone, Debug)]
struct Story {
    /// When each sample was taken, in minutes, and a number from 0 to 1 for each part.
    samples: Vec<(i64, [f64; 4])>,
    courses: [Course; 4],
    /// How many of them are compacted before the others arrive.
    early: usize,
}

prop_compose! {
    fn any_course()(unit in prop_oneof![Just(1_i64), Just(512), Just(4096), 1..1_i64 << 40], bits in 0..50_u32, which in 0..8) -> Course {
        match which {
            0 => Course::Constant,
            1 => Course::Absurd,
            _ => Course::Steps { unit, most: (1_i64 << bits).min((1_i64 << 60) / unit) },
        }
    }
}

prop_compose! {
    fn any_story()(
        samples in prop::collection::vec((0..120_i64, [0.0..1.0_f64, 0.0..1.0, 0.0..1.0, 0.0..1.0]), 1..40),
        in_order in prop::bool::weighted(0.5),
        courses in [any_course(), any_course(), any_course(), any_course()],
        early in 0..40_usize,
    ) -> Story {
        let mut samples = samples;
        if in_order {
            samples.sort_by_key(|(minute, _)| *minute);
        }
        Story { early: early.min(samples.len()), samples, courses }
    }
}

impl Course {
    fn value(self, before: i64, chance: f64) -> i64 {
        match self {
            Course::Constant => before,
            Course::Steps { unit, most } => {
                let step = ((chance - 0.4) * most as f64) as i64 * unit;
                (before + step).rem_euclid(1 << 62)
            }
            Course::Absurd if chance < 0.5 => 0,
            Course::Absurd => MOST,
        }
    }
}

impl Story {
    fn rows(&self) -> Vec<SampleRow> {
        let mut values = [1_i64 << 40; 4];
        let mut row = |(index, (minute, chances)): (usize, &(i64, [f64; 4]))| {
            for ((value, course), chance) in values.iter_mut().zip(self.courses).zip(chances) {
                *value = course.value(*value, *chance);
            }
            with_parts(index as i64 + 1, *minute, values)
        };
        self.samples.iter().enumerate().map(&mut row).collect()
    }

    /// What one agent's rows say before compaction is the reference for its chunks, and for those of an agent
    /// whose samples arrive in two parts.
    async fn play(&self, store: &TestStore) -> Result<()> {
        let (whole, halves) = (TestAgent::new(store).await?, TestAgent::new(store).await?);
        let rows = self.rows();
        whole.store(store, &rows).await?;
        let expected = shown(store, whole).await?;
        if self.early > 0 {
            halves.store(store, &rows[..self.early]).await?;
        }
        compact(store).await?;
        let found = shown(store, whole).await?;
        ensure!(found == expected, "chunks: {found}\nrows: {expected}");
        if self.early < rows.len() {
            halves.store(store, &rows[self.early..]).await?;
        }
        for when in ["late rows", "joined chunks"] {
            let found = shown(store, halves).await?;
            ensure!(found == expected, "{when}: {found}\nrows: {expected}");
            compact(store).await?;
        }
        Ok(())
    }
}

fn with_parts(seq: i64, minute: i64, values: [i64; 4]) -> SampleRow {
    let part = |((kind, name), value): (&(PartKind, &str), i64)| PartRow {
        kind: *kind,
        name: (*name).into(),
        value,
    };
    let optional = OptionalVitals {
        parts: PARTS.iter().zip(values).map(part).collect(),
        ..OptionalVitals::default()
    };
    SampleRow {
        optional: Some(Box::new(optional)),
        ..sample(seq, after(hours_ago(4), minute * MINUTE + seq))
    }
}

/// All values of an agent's parts, and all their hourly figures.
async fn shown(store: &TestStore, agent: TestAgent) -> Result<String> {
    let host = agent.host;
    let sql = format!(
        "SELECT concat_ws(E'\\n',
            (SELECT string_agg(concat_ws(' ', sampled_at, kind, name, value), E'\\n' ORDER BY sampled_at, kind, name)
               FROM host_metric_parts WHERE host_id = '{host}'),
            (SELECT string_agg(concat_ws(' ', hour, kind, name, value_min, value_avg, value_max, increase), E'\\n' ORDER BY hour, kind, name)
               FROM host_metric_parts_hourly WHERE host_id = '{host}'),
            (SELECT string_agg(concat_ws(' ', hour, fullest_disk_percent, fullest_disk_mount_point), E'\\n' ORDER BY hour)
               FROM host_metrics_hourly WHERE host_id = '{host}'))"
    );
    store.sql(&sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn values_and_figures_are_the_same_in_rows_chunks_and_joined_chunks() -> Result<()> {
    let (store, _) = world().await?;
    let play = async move |story: Story| story.play(&store).await;
    property(24, any_story(), play).await
}

/// The bytes that a step takes, part by part, and how many bytes there are.
const FORMS: &str = "SELECT string_agg(concat_ws(' ', (SELECT string_agg(width::text, '') FROM unnest(parts_series[cardinality(parts_series) / 5 * 4 + 1 :]) width),
                                                octet_length(parts_steps)), ', ' ORDER BY hour) FROM sample_chunks";

/// In the first hour nothing but the first counter changes; in the second one it begins again.
#[tokio::test]
async fn steps_take_a_byte_where_they_are_small_and_eight_where_they_are_absurd() -> Result<()> {
    let (store, agent) = world().await?;
    let values = [5, 5, 255, 10, 300].map(|blocks| blocks * 4096);
    let mut rows = Vec::new();
    for (seq, value) in (1..).zip(values) {
        rows.push(with_parts(seq, seq, [value, 7, 8, 9]));
        let again = if seq > 2 { value } else { MOST - seq };
        rows.push(with_parts(seq + 5, 60 + seq, [again, 7, 8, 9]));
    }
    rows.sort_by_key(|row| row.seq);
    agent.store(&store, &rows).await?;
    let expected = shown(&store, agent).await?;
    compact(&store).await?;
    assert_eq!(shown(&store, agent).await?, expected);
    // Four disk parts do not change. Of the first counter there are four steps, by multiples of five blocks.
    assert_eq!(store.sql(FORMS).await?, "00001000 4, 00008000 32");
    Ok(())
}

/// The steps are 2^62, -2^62 and 1, so that what is stored of the first one is 2^63.
#[tokio::test]
async fn the_widest_steps_there_are_are_read_back() -> Result<()> {
    let (store, agent) = world().await?;
    let row = |(seq, value)| with_parts(seq, seq, [value, MOST - value, MOST, 0]);
    let rows: Vec<SampleRow> = (1..).zip([0, MOST, 0, 1]).map(row).collect();
    agent.store(&store, &rows).await?;
    let expected = shown(&store, agent).await?;
    compact(&store).await?;
    assert_eq!(shown(&store, agent).await?, expected);
    assert_eq!(store.sql(FORMS).await?, "00008800 48");
    Ok(())
}

/// What queries over all hosts read of history.
const OVER_ALL_HOSTS: &str = "
    SELECT concat_ws(' ', (SELECT count(m.*) FROM host_metrics m), (SELECT count(p.*) > 0 FROM host_metric_parts p),
                     (SELECT count(h.*) FROM host_metrics_hourly h), (SELECT count(p.*) > 0 FROM host_metric_parts_hourly p),
                     (SELECT count(c.*) FROM host_vitals v CROSS JOIN LATERAL host_chunks(v.host_id, '-infinity', 'infinity') c))";

/// Of two hosts with three samples in an hour each, one has a chunk that nobody can have written, and a late sample in its hour.
#[tokio::test]
async fn a_damaged_chunk_makes_no_query_over_all_hosts_fail() -> Result<()> {
    let (store, damaged) = world().await?;
    let other = TestAgent::new(&store).await?;
    let rows: Vec<SampleRow> = (1..=3)
        .map(|seq| with_parts(seq, seq, [seq * seq, 7, 8, MOST >> seq]))
        .collect();
    for agent in [damaged, other] {
        agent.store(&store, &rows).await?;
    }
    compact(&store).await?;
    damaged
        .store(&store, &[with_parts(4, 5, [3, 7, 8, 9])])
        .await?;
    let expected = shown(&store, other).await?;
    assert_eq!(store.sql(OVER_ALL_HOSTS).await?, "7 t 2 t 3");
    for damage in [
        "parts_steps = '\\x00'",
        "parts_steps = NULL",
        "parts_series = '{1,2,3}'",
        "parts_series = array_fill(NULL::bigint, ARRAY[40])",
        "parts_series = array_fill(9223372036854775807, ARRAY[40])",
        "parts_series = NULL",
        "cpu_percent = '{}', seqs = '{5}', network_rx_bytes = '{NULL,1}'",
        "shape = gen_random_uuid()",
        "at = '{}'",
    ] {
        let sql = format!(
            "UPDATE sample_chunks c SET {damage} FROM host_vitals v WHERE v.host_no = c.host_no AND v.host_id = '{}'",
            damaged.host
        );
        store.sql(&sql).await?;
        let found = store.sql(OVER_ALL_HOSTS).await;
        found.with_context(|| damage.to_owned())?;
        assert_eq!(shown(&store, other).await?, expected, "{damage}");
    }
    Ok(())
}

/// Rollups outlive samples, and the names of their parts are in the shape.
#[tokio::test]
async fn a_shape_is_kept_as_long_as_a_rollup_refers_to_it() -> Result<()> {
    let (store, agent) = world().await?;
    agent
        .store(&store, &[with_parts(1, 1, [1, 2, 3, 4])])
        .await?;
    compact(&store).await?;
    let other = sample(2, hours_ago(2));
    agent.store(&store, &[other]).await?;
    compact(&store).await?;
    let expected = shown(&store, agent).await?;
    assert!(expected.contains("pressure_cpu_some"), "{expected}");
    let age = |days: u32| format!("UPDATE sample_shapes SET seen_on = current_date - {days}");
    store.sql(&age(40)).await?;
    assert_eq!(store.shapes_prune(DAY, 30 * DAY).await?, 0);
    assert_eq!(shown(&store, agent).await?, expected);
    store.sql(&age(80)).await?;
    assert_eq!(
        store.shapes_prune(DAY, 30 * DAY).await?,
        1,
        "not the latest"
    );
    Ok(())
}
