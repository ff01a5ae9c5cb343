//! Parts in packed chunks: the widest ones are read back, and a damaged chunk makes no query fail.

use anyhow::{Context, Result};
use svc_store::{PartKind, SampleRow};

use crate::{
    fixtures::*,
    rollup_oracle::{check, check_values, shown},
};

/// Four counters with these values.
fn with_counters(seq: i64, values: [i64; 4]) -> SampleRow {
    let of = |(name, value): (&str, i64)| part(PartKind::InterfaceRx, name, value);
    let names = ["eth0", "eth1", "eth2", "eth3"];
    let sample = sample(seq, after(hours_ago(4), seq * MINUTE));
    with_parts(sample, names.into_iter().zip(values).map(of).collect())
}

/// The bytes that a step takes, part by part, and how many bytes there are.
const FORMS: &str = "SELECT string_agg(concat_ws(' ', (SELECT string_agg(width::text, '') FROM unnest(parts_series[cardinality(parts_series) / 5 * 4 + 1 :]) width),
                                                octet_length(parts_steps)), ', ' ORDER BY hour) FROM sample_chunks";

/// The steps are 2^62, -2^62 and 1, so that what is stored of the first one is 2^63.
#[tokio::test]
async fn the_widest_steps_there_are_are_read_back() -> Result<()> {
    let (store, agent) = world().await?;
    let row = |(seq, value)| with_counters(seq, [value, MOST - value, MOST, 0]);
    let rows: Vec<SampleRow> = (1..).zip([0, MOST, 0, 1]).map(row).collect();
    agent.store(&store, &rows).await?;
    compact(&store).await?;
    check(&store, agent.host, &rows).await?;
    check_values(&store, agent.host, &rows).await?;
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
    let row = |seq| with_counters(seq, [seq * seq, 7, 8, MOST >> seq]);
    let rows: Vec<SampleRow> = (1..=3).map(row).collect();
    for agent in [damaged, other] {
        agent.store(&store, &rows).await?;
    }
    compact(&store).await?;
    let late = with_counters(4, [3, 7, 8, 9]);
    damaged.store(&store, &[late]).await?;
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
        check(&store, other.host, &rows).await.context(damage)?;
        check_values(&store, other.host, &rows)
            .await
            .context(damage)?;
    }
    Ok(())
}

/// Rollups outlive samples, and the names of their parts are in the shape.
#[tokio::test]
async fn a_shape_is_kept_as_long_as_a_sample_or_a_rollup_refers_to_it() -> Result<()> {
    let (store, agent) = world().await?;
    let first = with_counters(1, [1, 2, 3, 4]);
    for sample in [first, sample(2, hours_ago(2))] {
        agent.store(&store, &[sample]).await?;
        compact(&store).await?;
    }
    let expected = shown(&store, agent.host).await?;
    let age = |days: u32| format!("UPDATE sample_shapes SET seen_on = current_date - {days}");
    for (days, rollups, removed) in [(20, DAY, 0), (40, 30 * DAY, 0), (80, 30 * DAY, 1)] {
        assert_eq!(shown(&store, agent.host).await?, expected);
        store.sql(&age(days)).await?;
        // The latest one stays.
        assert_eq!(store.shapes_prune(DAY, rollups).await?, removed, "{days}");
    }
    Ok(())
}
