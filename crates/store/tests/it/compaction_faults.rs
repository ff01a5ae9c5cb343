//! One host stops nobody: it may send as much as it can, fail for any reason or arrive late.

use anyhow::{Context, Result, ensure};
use svc_store::{COMPACTION_STEP, GapKind, SampleRow};

use crate::{
    compaction::{ALL, SEEN, fleet},
    fixtures::*,
    rollup_oracle::check,
    support::*,
};

/// Chunks of this host are refused as PostgreSQL refuses what it cannot allocate.
async fn refuse(store: &TestStore, agent: &TestAgent) -> Result<()> {
    let sql = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.host_no = (SELECT host_no FROM host_vitals WHERE host_id = '{}') THEN
                 RAISE 'invalid memory alloc request size 1073741824' USING ERRCODE = 'XX000';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON sample_chunks FOR EACH ROW EXECUTE FUNCTION refuse()",
        agent.host
    );
    store.sql(&sql).await?;
    Ok(())
}

#[tokio::test]
async fn a_host_that_fails_alone_is_set_aside_stays_visible_and_is_tried_again() -> Result<()> {
    let (store, _) = world().await?;
    let fleet = fleet(&store, 3).await?;
    let all = store.sql(ALL).await?;
    refuse(&store, &fleet[1].0).await?;
    close(&store).await?;
    assert_eq!(store.compaction_step(1).await?.samples, 30);
    let error = store.compaction_step(60).await.err().context("compacted")?;
    assert!(error.fewer_may_succeed(), "{error}");
    let next = store.compaction_next().await?.context("nothing to do")?;
    store.compaction_set_aside(next, "refused").await?;
    assert_eq!(compact_sealed(&store, 60).await?, 30);
    assert!(store.compaction_retry(next).await.is_err());
    store.compaction_set_aside(next, "again").await?;
    assert_eq!(store.sql(ALL).await?, all, "its samples are not visible");
    assert_eq!(store.sql(SEEN).await?, "90 90 90");
    let aside = "SELECT concat_ws(' ', count(*), max(reason), max(tries)) FROM hosts_set_aside";
    assert_eq!(store.sql(aside).await?, "1 again 2");
    assert_eq!(store.overview().await?.history.hosts_set_aside, 1);
    let direct = store.direct()?;
    let dropped = store.hours_drop(&direct).await?;
    assert_eq!(dropped.len(), 0, "its rows are there");
    store.sql("DROP TRIGGER refuse ON sample_chunks").await?;
    assert_eq!(store.hosts_set_aside().await?, [next]);
    for samples in [30, 0] {
        assert_eq!(store.compaction_retry(next).await?.samples, samples);
    }
    store.compaction_set_aside(next, "too late").await?;
    assert_eq!(store.hosts_set_aside().await?, []);
    assert_eq!(store.hours_drop(&direct).await?.len(), 1);
    assert_eq!(store.sql(ALL).await?, all);
    Ok(())
}

/// Whoever deletes a host's row leaves samples without a host.
#[tokio::test]
async fn samples_of_a_host_that_is_gone_stop_nobody() -> Result<()> {
    let (store, _) = world().await?;
    let fleet = fleet(&store, 2).await?;
    let gone = fleet[0].0.host;
    let delete = format!("DELETE FROM host_vitals WHERE host_id = '{gone}'");
    store.sql(&delete).await?;
    assert_eq!(compact(&store).await?, 60);
    assert_eq!(store.sql(SEEN).await?, "30 30 30");
    Ok(())
}

/// They stay where they are until there is a day for them.
#[tokio::test]
async fn samples_whose_day_is_missing_are_kept_and_seen() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(0))]).await?;
    let dropped = "DO $$ BEGIN
        EXECUTE (SELECT string_agg('DROP TABLE sample_chunks_' || to_char(day, 'YYYYMMDD'), ';') FROM sample_days
                  WHERE day >= (now() AT TIME ZONE 'UTC')::date);
    END $$";
    store.sql(dropped).await?;
    close(&store).await?;
    let error = store.compaction_step(1).await.err().context("compacted")?;
    assert_eq!(error.sqlstate(), Some("23514"), "{error}");
    let next = store.compaction_next().await?.context("nothing to do")?;
    store.compaction_set_aside(next, "no day").await?;
    assert_eq!(compact_sealed(&store, COMPACTION_STEP).await?, 0);
    assert_eq!(store.sql(SEEN).await?, "1 1 1");
    assert_eq!(store.partitions_create(DAY).await?, 3);
    assert_eq!(store.compaction_retry(next).await?.samples, 1);
    assert_eq!(store.sql(SEEN).await?, "1 1 1");
    Ok(())
}

/// As many samples of an hour and parts of a sample as there may be, whose values are as different as they can be.
#[tokio::test]
async fn the_greatest_hour_of_an_agent_is_compacted_with_the_others() -> Result<()> {
    let (store, agent) = world().await?;
    let fleet = fleet(&store, 2).await?;
    agent.store(&store, &[sample(1, hours_ago(2))]).await?;
    let greatest = format!(
        "INSERT INTO sample_shapes (shape, parts)
         SELECT gen_random_uuid(), jsonb_agg(jsonb_build_object('kind', 'device_reads', 'name', i::text, 'counter', true) ORDER BY i)
           FROM generate_series(1, 838) i;
         INSERT INTO samples_open (arrived_hour, host_no, agent_no, sampled_at, seq, shape, parts, cpu_percent, load_1m, load_5m, load_15m,
                memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes)
         SELECT o.arrived_hour, o.host_no, o.agent_no, o.sampled_at + i * interval '0.4 s', i, s.shape,
                ARRAY(SELECT (random() * {MOST}::float8)::bigint FROM generate_series(1, 838 + i - i)),
                1, 1, 1, 1, {MOST}, {MOST}, {MOST}, {MOST}, i, 1, i, i
           FROM (SELECT * FROM samples_open WHERE seq = 1 ORDER BY host_no LIMIT 1) o, sample_shapes s, generate_series(2, 7200) i
          WHERE jsonb_array_length(s.parts) = 838"
    );
    store.sql(&greatest).await?;
    assert_eq!(compact(&store).await?, 7_260);
    let found = "SELECT sum(samples), count(DISTINCT host_no), (SELECT count(*) FROM hosts_set_aside) FROM sample_chunks";
    assert_eq!(store.sql(found).await?, "7260|3|0");
    for (agent, samples) in &fleet {
        check(&store, agent.host, samples).await?;
    }
    Ok(())
}

/// In both halves of an hour, because uptimes are stored relative to its middle.
#[tokio::test]
async fn every_scalar_at_its_limits_is_read_back_unchanged() -> Result<()> {
    let (store, agent) = world().await?;
    let extreme = |seq: i64, minute: i64, whole: i64, real: f64, processes: i64| SampleRow {
        cpu_percent: real.min(100.0),
        load: [real; 3],
        memory_used_bytes: whole,
        memory_total_bytes: whole,
        swap_used_bytes: whole,
        swap_total_bytes: whole,
        uptime_seconds: whole,
        process_count: processes,
        network_rx_bytes: whole,
        network_tx_bytes: whole,
        seq,
        ..sample(0, after(hours_ago(2), minute * MINUTE))
    };
    let (most, all) = (f64::from(f32::MAX), i64::from(i32::MAX));
    let samples = [
        extreme(1, 0, MOST, most, all),
        extreme(2, 1, 0, 0.0, 0),
        extreme(3, 59, MOST, most, all),
        extreme(MOST - 1, 59, 0, 0.0, 0),
        extreme(MOST, 60, MOST, f64::from(f32::MIN_POSITIVE), 1),
    ];
    let range = agent.range(&samples, &[gap(4..=MOST - 2, GapKind::Declared)]);
    store.samples_append(&[range]).await?;
    let all = store.sql(ALL).await?;
    check(&store, agent.host, &samples).await.context("rows")?;
    assert_eq!(compact(&store).await?, 5);
    assert_eq!(store.sql(ALL).await?, all);
    check(&store, agent.host, &samples).await.context("chunks")
}

/// What was read of open samples, in rows, since the last call.
async fn rows_read(store: &TestStore, at_least: i64) -> Result<i64> {
    let sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE relname LIKE 'samples_open%'";
    let counted = format!("SELECT ({sql}) >= {at_least}");
    store.becomes(&counted, "t").await?;
    Ok(store.sql(sql).await?.parse()?)
}

/// The rollup of an hour does not read the other hours of the same backfill again.
#[tokio::test]
async fn a_backfill_is_read_in_proportion_to_its_samples() -> Result<()> {
    let (store, agent) = world().await?;
    let at = |seq: i64| after(hours_ago(20), seq * HOUR / 120);
    let samples: Vec<SampleRow> = (1..=2_000).map(|seq| sample(seq, at(seq))).collect();
    agent.store(&store, &samples).await?;
    close(&store).await?;
    assert_eq!(compact_sealed(&store, COMPACTION_STEP).await?, 2_000);
    let read = rows_read(&store, 2_000).await?;
    ensure!(read <= 10_000, "it read {read} rows for 2,000 samples");
    Ok(())
}

/// Three days of arrival hours wait, as after a rollback. Each sample is of the hour before its arrival, so neighbours wait too.
#[tokio::test]
async fn waiting_hours_cost_in_proportion_to_their_samples() -> Result<()> {
    let (store, _) = world().await?;
    let agents = TestAgent::many(&store, 4).await?;
    let at = |seq: i64| after(hours_ago(40), seq * HOUR / 24);
    let samples: Vec<SampleRow> = (1..=720).map(|seq| sample(seq, at(seq))).collect();
    for hour in 0..72 {
        for agent in &agents {
            agent.store(&store, &samples[10 * hour..][..10]).await?;
        }
        hour_passes(&store).await?;
        store.hours_create().await?;
    }
    assert_eq!(store.hours_seal().await?, 72);
    assert_eq!(compact_sealed(&store, COMPACTION_STEP).await?, 72 * 40);
    let read = rows_read(&store, 72 * 40).await?;
    ensure!(read <= 5 * 2_880, "it read {read} rows for 2,880 samples");
    check(&store, agents[3].host, &samples).await
}
