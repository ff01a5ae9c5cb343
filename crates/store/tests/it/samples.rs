//! Appending samples: once, in order, with the books and the latest vitals.

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions, eventually};
use svc_store::{GapKind, GapRow, Range, SampleRow, Store, Watermark};

use crate::support::{PATIENCE, batch, migrated, open, options, text};
use crate::telling::{DAY, Teller, after, disk, hours_ago, sample, teller};

const BOOKS: &str =
    "SELECT concat_ws(' ', acked_seq, stored_count, rejected_count, gap_count) FROM agent_state";

fn gap(first_seq: i64, last_seq: i64, kind: GapKind) -> GapRow {
    let reason = "because".into();
    GapRow {
        first_seq,
        last_seq,
        kind,
        reason,
    }
}

#[tokio::test]
async fn a_number_is_stored_once_and_only_after_those_before_it() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let told: Vec<SampleRow> = (1..=9)
        .map(|seq| sample(seq, after(hours_ago(2), seq)))
        .collect();
    let at = |acked_seq| {
        vec![Watermark {
            agent_id: teller.agent,
            acked_seq,
        }]
    };
    let ahead = teller.range(&told[4..6], &[]);
    assert_eq!(
        store.samples_append(std::slice::from_ref(&ahead)).await?,
        at(0)
    );
    let gaps = [gap(3, 3, GapKind::Rejected), gap(4, 4, GapKind::NotSent)];
    let first = teller.range(&told[..2], &gaps);
    assert_eq!(
        store
            .samples_append(&[first.clone(), ahead.clone()])
            .await?,
        at(6)
    );
    let overlapping = teller.range(&told[5..], &[]);
    assert_eq!(
        store.samples_append(&[first, overlapping, ahead]).await?,
        at(9)
    );
    let seqs = "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM host_metrics";
    assert_eq!(text(&store, seqs).await?, "1 2 5 6 7 8 9");
    assert_eq!(text(&store, BOOKS).await?, "9 7 1 1");
    Ok(())
}

#[tokio::test]
async fn the_latest_vitals_are_complete_and_never_older() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    let mut newest = sample(1, hours_ago(1));
    newest.disks = vec![disk("/", 41), disk("/srv", 97), disk("/data", 97)];
    let older = SampleRow {
        cpu_percent: 99.0,
        ..sample(2, hours_ago(2))
    };
    store
        .samples_append(&[teller.range(&[newest, older], &[])])
        .await?;
    let vitals = "SELECT concat_ws(' ', cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes, memory_total_bytes,
                         swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes,
                         network_tx_bytes, jsonb_array_length(disks), fullest_disk_percent, fullest_disk_mount_point) FROM hosts";
    assert_eq!(
        text(&store, vitals).await?,
        "12.5 0.5 0.4 0.3 3221225472 8589934592 1048576 2147483648 86430 240 1000 100 3 97 /data"
    );
    let bare = SampleRow {
        disks: vec![],
        ..sample(3, after(hours_ago(1), 1))
    };
    store.samples_append(&[teller.range(&[bare], &[])]).await?;
    assert_eq!(
        text(
            &store,
            "SELECT concat(fullest_disk_percent, fullest_disk_mount_point) FROM hosts"
        )
        .await?,
        ""
    );
    Ok(())
}

#[tokio::test]
async fn a_sample_whose_day_is_not_kept_is_a_gap_and_holds_up_nobody() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let (one, two) = (teller(&store).await?, teller(&store).await?);
    let long_ago = hours_ago(24 * 30);
    let mixed = one.range(
        &[
            sample(1, hours_ago(2)),
            sample(2, long_ago),
            sample(3, hours_ago(1)),
        ],
        &[],
    );
    let good = two.range(&[sample(1, hours_ago(1))], &[]);
    let marks = store.samples_append(&[mixed, good]).await?;
    assert_eq!(
        marks.iter().map(|mark| mark.acked_seq).collect::<Vec<_>>(),
        [3, 1]
    );
    assert_eq!(
        text(
            &store,
            "SELECT string_agg(seq::text, ' ' ORDER BY sampled_at, host_id) FROM host_metrics"
        )
        .await?,
        "1 3 1"
    );
    let gaps = "SELECT string_agg(concat_ws(' ', first_seq, last_seq, kind, reason), ', ') FROM metric_gaps";
    assert_eq!(
        text(&store, gaps).await?,
        "2 2 not kept samples of its day are no longer kept"
    );
    let books = "SELECT string_agg(concat_ws(' ', acked_seq, stored_count, rejected_count, gap_count), ', ' ORDER BY agent_id) FROM agent_state";
    assert_eq!(text(&store, books).await?, "3 2 0 1, 1 1 0 0");
    Ok(())
}

#[tokio::test]
async fn agents_that_are_not_active_store_nothing() -> Result<()> {
    let (_database, store) = migrated().await?;
    store.samples_prepare(DAY).await?;
    let teller = teller(&store).await?;
    batch(&store, "UPDATE agents SET status = 'revoked'").await?;
    let marks = store
        .samples_append(&[teller.range(&[sample(1, hours_ago(1))], &[])])
        .await?;
    assert_eq!(marks, []);
    assert_eq!(
        text(&store, "SELECT count(*)::text FROM host_metrics").await?,
        "0"
    );
    Ok(())
}

/// Neither the latest vitals nor the watermark are in an index, but for the whole percents of the
/// fullest disk: as long as these stay, an update stays in its page. On a server of its own, since
/// what others do on a server delays the pruning of its pages.
#[tokio::test]
async fn updates_of_vitals_and_watermarks_stay_in_their_pages() -> Result<()> {
    const HOSTS: usize = 60;
    const ROUNDS: usize = 20;
    let server = Postgres::start(PostgresOptions::default()).await?;
    let store = open(&server.url("postgres"), options(3))?;
    store.migrate().await?;
    store.samples_prepare(DAY).await?;
    let mut tellers = Vec::new();
    for _ in 0..HOSTS {
        tellers.push(teller(&store).await?);
    }
    for seq in 1..=ROUNDS as i64 {
        let told = |teller: &Teller| {
            let mut sample = sample(seq, after(hours_ago(1), seq * 30_000));
            sample.disks[1].used_bytes += seq << 20; // A little fuller each time.
            teller.range(&[sample], &[])
        };
        let ranges: Vec<Range> = tellers.iter().map(told).collect();
        store.samples_append(&ranges).await?;
    }
    for table in ["hosts", "agent_state"] {
        let (updates, hot) = updates(&store, table, HOSTS * ROUNDS).await?;
        // A host's first sample makes its row grow, and puts it into the index of full disks.
        assert!(hot + 2 * HOSTS >= updates, "{table}: {hot} of {updates}");
    }
    Ok(())
}

/// How often rows of `table` were updated, and how often that stayed in the page; once
/// the statistics, which come late, tell of as many as there were.
async fn updates(store: &Store, table: &str, all: usize) -> Result<(usize, usize)> {
    let sql = format!(
        "SELECT concat(n_tup_upd, ' ', n_tup_hot_upd) FROM pg_stat_user_tables WHERE relname = '{table}'"
    );
    let mut counts = (0, 0);
    eventually("the statistics are there", PATIENCE, async || {
        let line = text(store, &sql).await.unwrap_or_default();
        let mut numbers = line.split(' ').map(|n| n.parse().unwrap_or(0));
        counts = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        counts.0 >= all
    })
    .await?;
    Ok(counts)
}
