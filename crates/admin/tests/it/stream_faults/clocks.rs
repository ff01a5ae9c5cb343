//! Wrong clocks, and what a steady or reconnecting fleet writes.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use svc_proto::v1::Sample;
use svc_testkit::{
    AUTO, ActiveAgent, Fleet, Pace, Proxy, Site, eventually, get, presence_digest, sample,
    times_offline, token, transaction_count, transactions, wire_time,
};

use super::BRISK;

fn sampled(seq: u64, ahead: jiff::SignedDuration) -> Sample {
    Sample {
        sampled_at: Some(wire_time(Timestamp::now() + ahead)),
        ..sample(seq)
    }
}

#[tokio::test]
async fn a_clock_that_is_a_year_off_rejects_samples_of_that_agent_only() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO).await?;
    let year = jiff::SignedDuration::from_hours(365 * 24);
    let mut calls = Vec::new();
    for (number, off) in [(1, -year), (2, jiff::SignedDuration::ZERO), (3, year)] {
        let active = ActiveAgent::with_token(instance.grpc, number, &secret).await?;
        let mut hello = active.agent.hello();
        hello.sent_at = Some(wire_time(Timestamp::now() + off));
        let opened = active
            .agent
            .try_heartbeat(instance.grpc, &active.jwt, hello);
        let call = opened.await?;
        let call = call.expect("a wrong clock is no reason to refuse");
        call.report(vec![sampled(1, off), sample(2)], vec![])
            .await?;
        calls.push(call);
    }
    let old = "sampled_at is older than the retention";
    let ahead = "sampled_at is more than 5 minutes ahead of the database's clock";
    for (call, expected) in calls.iter_mut().zip([&[old][..], &[], &[ahead]]) {
        let ack = call.next_ack().await?;
        assert_eq!(ack.up_to_seq, 2, "good samples are accepted");
        let reasons: Vec<_> = ack.rejected.iter().map(|r| r.reason.as_str()).collect();
        assert_eq!(reasons, expected);
    }
    let skews = "SELECT string_agg((clock_skew_ms / 86400000.0)::int::text, ' ' ORDER BY clock_skew_ms) FROM agent_state";
    site.expect(skews, "-365 0 365").await?;
    ensure!(times_offline(&site).await? == 0);
    Ok(())
}

/// Shifts the clock of the database: the clock of the service is then ten minutes slow or fast.
#[tokio::test]
async fn sample_times_are_judged_by_the_clock_of_the_database() -> Result<()> {
    for minutes in [10, -10] {
        let site = Site::new().await?;
        site.settable_clock().await?;
        site.set_clock(&format!("{minutes} minutes")).await?;
        let (_instance, agent) = site.instance().with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        let server_time = call.welcome.server_time.map_or(0, |time| time.seconds);
        let expected = Timestamp::now().as_second() + minutes * 60;
        ensure!(
            (server_time - expected).abs() < 60,
            "server_time is {server_time}, not {expected}"
        );
        let ahead = |more| jiff::SignedDuration::from_mins(minutes + more);
        call.report(vec![sampled(1, ahead(3)), sampled(2, ahead(8))], vec![])
            .await?;
        let ack = call.next_ack().await?;
        let rejected: Vec<u64> = ack.rejected.iter().map(|rejection| rejection.seq).collect();
        assert_eq!((ack.up_to_seq, rejected), (2, vec![2]), "{minutes}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_fleet_writes_samples_and_no_presence() -> Result<()> {
    let site = Site::new().await?;
    let busy = site.instance().timing(|timing| {
        timing.lease_renewal = Duration::from_millis(500);
        timing.poll = Duration::from_secs(1);
    });
    let instances = busy.start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let http = instances.each_ref().map(|instance| instance.http);
    let fleet = Fleet::start(&site, &addresses, 0, 10, BRISK).await?;
    let before = (presence_digest(&site).await?, transactions(&http).await?);
    let enough = fleet.acked() + 100;
    eventually("a hundred more samples", async || fleet.acked() >= enough).await?;
    let after = (presence_digest(&site).await?, transactions(&http).await?);
    assert_eq!(before.0, after.0, "heartbeats wrote presence");
    let asked: Vec<&str> = after
        .1
        .iter()
        .filter(|(name, count)| before.1.get(*name) != Some(count))
        .map(|(name, _)| name.as_str())
        .collect();
    let steady = [
        "agent_counts_prune",
        "agents_to_change_key",
        "cells_list",
        "events_prune",
        "fleet_pictures_refresh",
        "gaps_prune",
        "lease_renew",
        "partitions_drop",
        "reinstalls_admit",
        "rollouts_open",
        "rollouts_running",
        "settings_mark",
        "compaction_lists",
        "compaction_step",
        "hosts_set_aside",
        "hours_create",
        "hours_drop",
        "hours_prune",
        "hours_seal",
        "overview",
        "shapes_prune",
        "trust_list",
        "samples_append",
        "partitions_create",
        "sessions_digest",
        "sessions_displaced",
        "sessions_stored",
        "watermarks",
    ];
    let strange: Vec<_> = asked.iter().filter(|name| !steady.contains(name)).collect();
    ensure!(
        asked.contains(&"samples_append") && strange.is_empty(),
        "{asked:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_reconnect_at_once_are_opened_in_few_statements() -> Result<()> {
    const AGENTS: u32 = 100;
    let (site, instance) = Site::with_instance().await?;
    let proxy = Proxy::start(vec![instance.grpc]).await?;
    let pace = Pace {
        every: Duration::from_secs(3),
        backoff: Duration::from_millis(1),
        ..BRISK
    };
    let fleet = Fleet::start(&site, &[proxy.address()], 0, AGENTS, pace).await?;
    let opens = async || transaction_count(instance.http, "sessions_open").await;
    let (before, began) = (opens().await?, std::time::Instant::now());
    proxy.cut_all();
    eventually("all are back", async || {
        fleet.streams().iter().all(|streams| *streams >= 2)
    })
    .await?;
    // At most ten batches leave in a second.
    let most = began.elapsed().as_millis() as u64 / 100 + 2;
    let asked = opens().await? - before;
    ensure!(
        asked <= most && asked < u64::from(AGENTS),
        "{asked} statements, {most} at most"
    );
    assert_eq!(get(instance.http, "/healthz").await?.status, 200);
    fleet.audit(&site).await
}
