//! Parts: their values and their hourly figures are the same from rows, from packed chunks and from plain ones.

use anyhow::{Result, ensure};
use proptest::prelude::*;
use svc_store::{OptionalVitals, PartKind, PartRow, SampleRow};

use crate::{
    fixtures::{DAY, TestAgent, after, compact, hours_ago, sample, world},
    support::{TestStore, property},
};

const MINUTE: i64 = 60_000;

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
    /// From 0 to the greatest number there is, and back.
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
            Course::Absurd => i64::MAX,
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

const FORMS: &str = "SELECT string_agg(concat_ws(' ', parts_plain IS NOT NULL, parts_series IS NOT NULL, octet_length(parts_steps)), ', ' ORDER BY hour) FROM sample_chunks";

/// In the first hour nothing but the first part changes; in the second one its counter begins again.
#[tokio::test]
async fn steps_take_a_byte_where_they_are_small_and_values_stay_plain_where_they_are_absurd()
-> Result<()> {
    let (store, agent) = world().await?;
    let values = [5, 5, 255, 10, 300].map(|blocks| blocks * 4096);
    let mut rows = Vec::new();
    for (seq, value) in (1..).zip(values) {
        rows.push(with_parts(seq, seq, [value, 7, 8, 9]));
        let again = if seq > 2 { value } else { i64::MAX };
        rows.push(with_parts(seq + 5, 60 + seq, [again, 7, 8, 9]));
    }
    rows.sort_by_key(|row| row.seq);
    agent.store(&store, &rows).await?;
    let expected = shown(&store, agent).await?;
    compact(&store).await?;
    assert_eq!(shown(&store, agent).await?, expected);
    // Four steps, by multiples of five blocks.
    assert_eq!(store.sql(FORMS).await?, "f t 4, t f");
    Ok(())
}

/// A chunk that was stored before parts were packed.
#[tokio::test]
async fn plain_chunks_are_read_and_late_samples_join_them() -> Result<()> {
    let (store, agent) = world().await?;
    let row = |seq: i64, minute: i64| with_parts(seq, minute, [seq * 10, seq, 100 - seq, 3]);
    let rows: Vec<SampleRow> = (1..=6).map(|seq| row(seq, seq * 15)).collect();
    agent.store(&store, &rows).await?;
    let expected = shown(&store, agent).await?;
    compact(&store).await?;
    let unpack = "UPDATE sample_chunks c SET parts_plain = v.parts, parts_series = NULL, parts_steps = NULL
                    FROM sample_chunks o, parts_values(o.parts_plain, o.parts_series, o.parts_steps, cardinality(o.at), cardinality(o.parts_series) / 5) v
                   WHERE o.host_no = c.host_no AND o.hour = c.hour";
    store.sql(unpack).await?;
    assert_eq!(store.sql(FORMS).await?, "t f, t f");
    assert_eq!(shown(&store, agent).await?, expected);
    let late = [row(7, 16), row(8, 59)];
    agent.store(&store, &late).await?;
    let expected = shown(&store, agent).await?;
    compact(&store).await?;
    assert_eq!(shown(&store, agent).await?, expected);
    assert!(store.sql(FORMS).await?.starts_with("f t "), "packed now");
    Ok(())
}

/// It would write a packed chunk again without its values.
#[tokio::test]
async fn the_compaction_of_the_previous_version_finds_no_column_for_parts() -> Result<()> {
    let (store, _) = world().await?;
    for table in ["sample_chunks", "samples_open"] {
        let read = store.sql(&format!("SELECT parts FROM {table}")).await;
        assert_eq!(read.is_err(), table == "sample_chunks", "{table}");
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
