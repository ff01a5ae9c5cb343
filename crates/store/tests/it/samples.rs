//! Appending samples: each number once and in order, with the books and the latest vitals.

use std::slice;

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions, eventually};
use svc_store::{GapKind, GapRow, Range, SampleRow, Watermark};

use crate::{
    fixtures::{DAY, TestAgent, after, disk, hours_ago, sample, world},
    support::{PATIENCE, TestStore},
};

const BOOKS: &str = "SELECT string_agg(concat_ws(' ', acked_seq, stored_count, rejected_count, gap_count), ', ' ORDER BY agent_id)
                       FROM agent_state";

fn gap(seq: i64, kind: GapKind) -> GapRow {
    GapRow {
        first_seq: seq,
        last_seq: seq,
        kind,
        reason: "because".into(),
    }
}

#[tokio::test]
async fn a_number_is_stored_once_and_only_after_all_lower_numbers() -> Result<()> {
    let (store, agent) = world().await?;
    let numbered = |seq| sample(seq, after(hours_ago(2), seq));
    let samples: Vec<SampleRow> = (1..=9).map(numbered).collect();
    let at = |acked_seq| {
        vec![Watermark {
            agent_id: agent.id,
            acked_seq,
        }]
    };
    let ahead = agent.range(&samples[4..6], &[]);
    let watermarks = store.samples_append(slice::from_ref(&ahead)).await?;
    assert_eq!(watermarks, at(0));
    let gaps = [gap(3, GapKind::Rejected), gap(4, GapKind::NotSent)];
    let first = agent.range(&samples[..2], &gaps);
    let ranges = [first.clone(), ahead.clone()];
    assert_eq!(store.samples_append(&ranges).await?, at(6));
    let overlapping = agent.range(&samples[5..], &[]);
    let ranges = [first, overlapping, ahead];
    assert_eq!(store.samples_append(&ranges).await?, at(9));
    let seqs = "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM host_metrics";
    assert_eq!(store.sql(seqs).await?, "1 2 5 6 7 8 9");
    assert_eq!(store.sql(BOOKS).await?, "9 7 1 1");
    Ok(())
}

#[tokio::test]
async fn the_latest_vitals_are_complete_and_never_replaced_by_older_ones() -> Result<()> {
    let (store, agent) = world().await?;
    let newest = SampleRow {
        disks: vec![disk("/", 41), disk("/srv", 97), disk("/data", 97)],
        ..sample(1, hours_ago(1))
    };
    let older = SampleRow {
        cpu_percent: 99.0,
        ..sample(2, hours_ago(2))
    };
    agent.store(&store, &[newest, older]).await?;
    let vitals = "SELECT concat_ws(' ', cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes, memory_total_bytes,
                         swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes,
                         network_tx_bytes, jsonb_array_length(disks), fullest_disk_percent, fullest_disk_mount_point) FROM hosts";
    assert_eq!(
        store.sql(vitals).await?,
        "12.5 0.5 0.4 0.3 3221225472 8589934592 1048576 2147483648 86430 240 1000 100 3 97 /data"
    );
    let without_disks = SampleRow {
        disks: vec![],
        ..sample(3, after(hours_ago(1), 1))
    };
    agent.store(&store, &[without_disks]).await?;
    let fullest = "SELECT concat(fullest_disk_percent, fullest_disk_mount_point) FROM hosts";
    assert_eq!(store.sql(fullest).await?, "");
    Ok(())
}

#[tokio::test]
async fn a_sample_whose_day_has_no_partition_becomes_a_gap_and_blocks_nothing() -> Result<()> {
    let (store, one) = world().await?;
    let two = TestAgent::new(&store).await?;
    let samples = [
        sample(1, hours_ago(2)),
        sample(2, hours_ago(24 * 30)),
        sample(3, hours_ago(1)),
    ];
    let mixed = one.range(&samples, &[]);
    let good = two.range(&[sample(1, hours_ago(1))], &[]);
    let watermarks = store.samples_append(&[mixed, good]).await?;
    let acked: Vec<i64> = watermarks.iter().map(|mark| mark.acked_seq).collect();
    assert_eq!(acked, [3, 1]);
    let seqs = "SELECT string_agg(seq::text, ' ' ORDER BY sampled_at, host_id) FROM host_metrics";
    assert_eq!(store.sql(seqs).await?, "1 3 1");
    let gaps = "SELECT concat_ws(' ', first_seq, last_seq, kind, reason) FROM metric_gaps";
    let expected = "2 2 not kept samples of its day are no longer kept";
    assert_eq!(store.sql(gaps).await?, expected);
    assert_eq!(store.sql(BOOKS).await?, "3 2 0 1, 1 1 0 0");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_not_active_stores_nothing() -> Result<()> {
    let (store, agent) = world().await?;
    store.sql("UPDATE agents SET status = 'revoked'").await?;
    let range = agent.range(&[sample(1, hours_ago(1))], &[]);
    assert_eq!(store.samples_append(&[range]).await?, []);
    let count = "SELECT count(*) FROM host_metrics";
    assert_eq!(store.sql(count).await?, "0");
    Ok(())
}

/// The only indexed value among the vitals is the percentage of the fullest disk, in whole
/// percents. While it does not change, an update stays in its page (HOT). The test has a
/// server of its own, because other activity on a server delays the pruning of pages.
#[tokio::test]
async fn updates_of_vitals_and_watermarks_are_hot() -> Result<()> {
    const HOSTS: usize = 60;
    const ROUNDS: usize = 20;
    let server = Postgres::start(PostgresOptions::default()).await?;
    let store = TestStore::open(&server.url("postgres"), 3)?;
    store.migrate().await?;
    store.partitions_create(DAY).await?;
    let agents = TestAgent::many(&store, HOSTS).await?;
    for seq in 1..=ROUNDS as i64 {
        let range = |agent: &TestAgent| {
            let mut sample = sample(seq, after(hours_ago(1), seq * 30_000));
            sample.disks[1].used_bytes += seq << 20;
            agent.range(&[sample], &[])
        };
        let ranges: Vec<Range> = agents.iter().map(range).collect();
        store.samples_append(&ranges).await?;
    }
    for table in ["hosts", "agent_state"] {
        let (updates, hot) = updates(&store, table, HOSTS * ROUNDS).await?;
        // A host's first sample grows its row and adds it to the index of full disks.
        assert!(hot + 2 * HOSTS >= updates, "{table}: {hot} of {updates}");
    }
    Ok(())
}

/// The numbers of updates and of HOT updates of `table`, once the statistics, which
/// PostgreSQL publishes late, count all updates.
async fn updates(store: &TestStore, table: &str, all: usize) -> Result<(usize, usize)> {
    let sql = format!(
        "SELECT concat(n_tup_upd, ' ', n_tup_hot_upd) FROM pg_stat_user_tables WHERE relname = '{table}'"
    );
    let mut counts = (0, 0);
    eventually("the statistics are complete", PATIENCE, async || {
        let line = store.sql(&sql).await.unwrap_or_default();
        let mut numbers = line.split(' ').map(|n| n.parse().unwrap_or(0));
        counts = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        counts.0 >= all
    })
    .await?;
    Ok(counts)
}
