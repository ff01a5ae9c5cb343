//! Appending samples: each number once and in order, with the books and the latest vitals.

use std::{collections::BTreeSet, slice};

use anyhow::Result;
use svc_store::{
    GapKind, HostSearch, HostsPage, OptionalVitals, PartKind, Range, SampleRow, Watermark,
};

use crate::{fixtures::*, support::*};

const BOOKS: &str = "SELECT string_agg(concat_ws(' ', acked_seq, stored_count, rejected_count, gap_count), ', ' ORDER BY agent_id)
                       FROM agent_state";

const SEQS: &str = "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM host_metrics";

fn at(agent: TestAgent, acked_seq: i64) -> Vec<Watermark> {
    vec![Watermark {
        agent_id: agent.id,
        acked_seq,
    }]
}

#[tokio::test]
async fn a_number_is_stored_once_and_only_after_all_lower_numbers() -> Result<()> {
    let (store, agent) = world().await?;
    let samples = samples(1..=9);
    let ahead = agent.range(&samples[4..6], &[]);
    let watermarks = store.samples_append(slice::from_ref(&ahead)).await?;
    assert_eq!(watermarks, at(agent, 0));
    let gaps = [gap(3..=3, GapKind::Rejected), gap(4..=4, GapKind::NotSent)];
    let first = agent.range(&samples[..2], &gaps);
    let ranges = [first.clone(), ahead.clone()];
    assert_eq!(store.samples_append(&ranges).await?, at(agent, 6));
    let overlapping = agent.range(&samples[5..], &[]);
    let ranges = [first, overlapping, ahead];
    assert_eq!(store.samples_append(&ranges).await?, at(agent, 9));
    assert_eq!(store.sql(SEQS).await?, "1 2 5 6 7 8 9");
    assert_eq!(store.sql(BOOKS).await?, "9 7 1 1");
    Ok(())
}

/// After an agent's first samples its next ones take the path of runs; whatever does not continue
/// exactly takes the general one, in the same call.
#[tokio::test]
async fn a_batch_of_runs_and_other_ranges_stores_each_number_once() -> Result<()> {
    let (store, first) = world().await?;
    let mut agents = TestAgent::many(&store, 3).await?;
    agents.push(first);
    let samples = samples(1..=6);
    for agent in &agents {
        agent.store(&store, &samples[..2]).await?;
    }
    let ranges = [
        agents[0].range(&samples[2..4], &[]), // It continues.
        agents[1].range(&samples[1..4], &[]), // It overlaps.
        agents[2].range(&samples[3..4], &[]), // It leaves a number out.
        agents[3].range(&samples[2..3], &[]), // Two reports of one agent.
        agents[3].range(&samples[3..6], &[]),
    ];
    for _ in 0..2 {
        let watermarks = store.samples_append(&ranges).await?;
        for (agent, acked) in agents.iter().zip([4, 4, 2, 6]) {
            assert!(watermarks.contains(&at(*agent, acked)[0]), "{watermarks:?}");
        }
    }
    for (agent, seqs) in agents
        .iter()
        .zip(["1 2 3 4", "1 2 3 4", "1 2", "1 2 3 4 5 6"])
    {
        let stored = format!("{SEQS} WHERE agent_id = '{}'", agent.id);
        assert_eq!(store.sql(&stored).await?, seqs);
    }
    Ok(())
}

/// The first sample of an agent takes the general path, the second one the path of runs.
#[tokio::test]
async fn every_value_is_read_back_as_it_was_written_by_either_path() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &samples(1..=1)).await?;
    agent.store(&store, &samples(2..=2)).await?;
    let values = "SELECT DISTINCT concat_ws(' ', host_id, agent_id, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes,
                         memory_total_bytes, swap_used_bytes, swap_total_bytes, process_count,
                         uptime_seconds - 30 * seq, network_rx_bytes / seq, network_tx_bytes / seq, disks) FROM host_metrics";
    let disk = |mount: &str, used: i64| {
        format!(
            r#"{{"device": "/dev/nvme0n1p2", "fs_type": "ext4", "used_bytes": {used}, "mount_point": "{mount}", "total_bytes": 107374182400}}"#
        )
    };
    let (root, var) = (disk("/", 41 << 30), disk("/var", 63 << 30));
    let vitals = "12.5 0.5 0.4000000059604645 0.30000001192092896 3221225472 8589934592 1048576 2147483648 240 86400 1000 100";
    let expected = format!("{} {} {vitals} [{root}, {var}]", agent.host, agent.id);
    assert_eq!(store.sql(values).await?, expected);
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
    let vitals = "SELECT concat_ws(' ', v.cpu_percent, v.load_1m, load_5m, load_15m, v.memory_used_bytes, v.memory_total_bytes,
                         swap_used_bytes, swap_total_bytes, uptime_seconds, process_count, network_rx_bytes,
                         network_tx_bytes, jsonb_array_length(disks), v.fullest_disk_percent, v.fullest_disk_mount_point)
                    FROM host_vitals v JOIN host_overview ON id = host_id";
    let latest =
        "12.5 0.5 0.4 0.3 3221225472 8589934592 1048576 2147483648 86430 240 1000 100 3 97 /data";
    assert_eq!(store.sql(vitals).await?, latest);
    let without_disks = SampleRow {
        disks: vec![],
        ..sample(3, after(hours_ago(1), 1))
    };
    agent.store(&store, &[without_disks]).await?;
    let fullest =
        "SELECT concat(fullest_disk_percent, fullest_disk_mount_point, disks) FROM host_overview";
    assert_eq!(store.sql(fullest).await?, "[]");
    Ok(())
}

#[tokio::test]
async fn optional_vitals_are_parts_of_the_sample() -> Result<()> {
    let (store, agent) = world().await?;
    let optional = OptionalVitals {
        parts: vec![
            part(PartKind::InterfaceRx, "eth0", 7),
            part(PartKind::CpuSteal, "", 8),
        ],
        unreadable_mounts: vec!["/mnt/nfs".into()],
        spool_problem: "disk full".into(),
    };
    let with = SampleRow {
        optional: Some(Box::new(optional)),
        ..sample(1, hours_ago(1))
    };
    agent.store(&store, &[with]).await?;
    let latest = "SELECT concat_ws(' ', spool_problem, unreadable_mounts, cardinality(parts)) FROM host_vitals";
    assert_eq!(store.sql(latest).await?, "disk full [\"/mnt/nfs\"] 6");
    agent.store(&store, &samples(2..=2)).await?;
    assert_eq!(store.sql(latest).await?, "4");
    Ok(())
}

/// Both take the general path, and the second one has the newest sample of the host.
#[tokio::test]
async fn the_first_two_reports_of_a_host_in_one_batch_leave_its_latest_vitals() -> Result<()> {
    let (store, agent) = world().await?;
    let ranges = [1, 2].map(|seq| agent.range(&samples(seq..=seq), &[]));
    store.samples_append(&ranges).await?;
    let latest = "SELECT concat_ws(' ', uptime_seconds, cardinality(parts), vitals_at IS NOT NULL) FROM host_vitals";
    assert_eq!(store.sql(latest).await?, "86460 4 t");
    Ok(())
}

/// Thousands of gaps of one agent hide nobody's.
#[tokio::test]
async fn each_agent_says_when_its_last_gap_and_dead_letter_were_recorded() -> Result<()> {
    let (store, noisy) = world().await?;
    let agents = TestAgent::many(&store, 3).await?;
    for (agent, kind) in agents.iter().zip([GapKind::Rejected, GapKind::DeadLetter]) {
        let range = agent.range(&[], &[gap(1..=1, kind)]);
        store.samples_append(&[range]).await?;
    }
    let noise = format!(
        "INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
         SELECT '{}', n, n, 'declared', 'noise' FROM generate_series(1, 100001) n",
        noisy.id
    );
    store.sql(&noise).await?;
    let found = store.console_attention().await?;
    assert_eq!((found.gaps_day, found.dead_letters_day), (2, 1));
    let search = HostSearch {
        gaps: true,
        ..HostSearch::default()
    };
    let page = HostsPage {
        search,
        ..HostsPage::default()
    };
    let found = store.console_hosts(&page, 10).await?;
    let hosts: BTreeSet<_> = found.rows.iter().map(|row| row.id).collect();
    assert_eq!(hosts, agents[..2].iter().map(|of| of.host).collect());
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_not_active_stores_nothing() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(1))]).await?;
    store.sql("UPDATE agents SET status = 'revoked'").await?;
    let range = agent.range(&[sample(2, hours_ago(1))], &[]);
    assert_eq!(store.samples_append(&[range]).await?, []);
    assert_eq!(store.sql(SEQS).await?, "1");
    Ok(())
}

/// An agent that was approved for another host: what it sends from then on is of the new one, and
/// a late range of the old one is still stored there.
#[tokio::test]
async fn an_agent_that_moved_to_another_host_stores_its_samples_there() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(2))]).await?;
    let other = TestAgent::new(&store).await?;
    let moved = TestAgent {
        host: other.host,
        ..agent
    };
    let moves = format!(
        "UPDATE agents SET status = 'revoked' WHERE id = '{}';
         UPDATE agents SET host_id = '{}' WHERE id = '{}'",
        other.id, other.host, agent.id
    );
    store.sql(&moves).await?;
    for (seq, from) in [(2, agent), (3, moved), (4, moved)] {
        from.store(&store, &samples(seq..=seq)).await?;
    }
    let hosts = format!(
        "SELECT string_agg(CASE host_id WHEN '{}' THEN 'new' ELSE 'old' END, ' ' ORDER BY seq) FROM host_metrics",
        other.host
    );
    assert_eq!(store.sql(&hosts).await?, "old old new new");
    Ok(())
}

#[tokio::test]
async fn history_outlives_its_agent() -> Result<()> {
    let (store, agent) = world().await?;
    agent.store(&store, &[sample(1, hours_ago(2))]).await?;
    store.sql("DELETE FROM agents").await?;
    let left = "SELECT concat_ws(' ', agent_id, host_id, seq) FROM host_metrics";
    let expected = format!("{} {} 1", agent.id, agent.host);
    assert_eq!(store.sql(left).await?, expected);
    Ok(())
}

/// The only indexed value among the vitals is the percentage of the fullest disk, in whole
/// percents. While it does not change, an update stays in its page (HOT). The test has a
/// server of its own, because other activity on a server delays the pruning of pages.
#[tokio::test]
async fn updates_of_vitals_and_watermarks_are_hot() -> Result<()> {
    const HOSTS: usize = 60;
    const ROUNDS: usize = 20;
    let (_server, store) = own_server(&[]).await?;
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
    // A host's first sample grows its row and adds it to the index of full disks.
    let hot = format!(
        "SELECT concat(count(*), bool_and(n_tup_hot_upd + {} >= n_tup_upd)) FROM pg_stat_user_tables
          WHERE relname IN ('host_vitals', 'agent_state') AND n_tup_upd >= {}",
        2 * HOSTS,
        HOSTS * ROUNDS
    );
    store.becomes(&hot, "2t").await
}
