//! The faults of docs/reliability.md that concern streams, briefly and without strict times, which
//! `make chaos` checks.

mod clock_steps;
mod clocks;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use svc_front::listener::Limits;
use svc_ingest::config::Timing;
use svc_testkit::{
    ABSENT, ActiveAgent, Fleet, Instance, Pace, Proxy, SAME_KEY, Site, absent_instance, eventually,
    faults::{self, DatabaseFault},
    runs_again, times_offline,
};

const BRISK: Pace = Pace {
    every: Duration::from_millis(300),
    ..Pace::BRISK
};

/// Notices the loss of its database at once, and renews its lease often.
fn quick_to_notice(timing: &mut Timing) {
    timing.lease_renewal = Duration::from_millis(500);
    timing.lease_ttl = Duration::from_secs(2);
    timing.freshness = Duration::from_secs(2);
    timing.poll = Duration::from_secs(1);
}

/// Never sweeps by itself: the test calls the sweep.
fn without_sweep(timing: &mut Timing) {
    timing.lease_renewal = Duration::from_hours(1);
    timing.lease_ttl = Duration::from_hours(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_survive_a_database_that_stops_or_freezes() -> Result<()> {
    let survived = async |fault: DatabaseFault| {
        let mut site = Site::with_own_server().await?;
        let instances = site.instance().timing(quick_to_notice).start_pair().await?;
        let addresses = instances.each_ref().map(|instance| instance.grpc);
        let length = Duration::from_secs(4);
        let away = faults::database_away(&mut site, &addresses, (10, BRISK), fault, length);
        away.await.with_context(|| format!("{fault:?}"))
    };
    let both = [DatabaseFault::Stopped, DatabaseFault::Frozen];
    try_join_all(both.map(survived)).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cut_off_while_the_database_is_away_stays_online_and_reconnects() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    // An end whose first write only waits until the database is back has no other grace.
    let patient = |timing: &mut Timing| {
        quick_to_notice(timing);
        timing.lost_grace = Timing::default().lost_grace;
    };
    let instance = site.instance().timing(patient).start().await?;
    let proxy = Proxy::start(vec![instance.grpc]).await?;
    let fleet = Fleet::start(&site, &[proxy.address()], 0, 5, BRISK).await?;
    site.postgres().stop_immediate().await?;
    proxy.cut_all();
    eventually("all have lost their streams", async || {
        fleet.connected() == 0
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    site.postgres().start_again().await?;
    fleet.all_connected().await?;
    fleet.audit(&site).await?;
    ensure!(times_offline(&site).await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_whose_proxy_dies_were_never_offline_and_one_that_stays_away_is() -> Result<()> {
    let site = Site::new().await?;
    let patient = |timing: &mut Timing| {
        timing.lost_grace = Timing::default().lost_grace;
        timing.lease_renewal = Duration::from_millis(200);
    };
    let instance = site.instance().timing(patient).start().await?;
    let proxy = Proxy::start(vec![instance.grpc]).await?;
    let fleet = Fleet::start(&site, &[proxy.address()], 0, 5, BRISK).await?;
    let streams = fleet.streams();
    proxy.cut_all();
    eventually("all have another stream", async || {
        let now = fleet.streams();
        now.iter().zip(&streams).all(|(now, before)| now > before)
    })
    .await?;
    ensure!(times_offline(&site).await? == 0);
    fleet.audit(&site).await?;

    drop(fleet);
    let waits = "SELECT count(*) FROM agent_state WHERE (presence, cause) = ('online', 'drained')
                    AND online_until BETWEEN now() + interval '1 s' AND now() + interval '30 s'";
    site.becomes(waits, "5").await?;
    site.psql("UPDATE agent_state SET online_until = now()")
        .await?;
    let lost = "SELECT count(*) FROM agent_state WHERE (presence, cause) = ('offline', 'lost')";
    site.becomes(lost, "5").await
}

#[tokio::test]
async fn agents_get_a_grace_period_after_all_instances_were_away() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().set("INGEST_DRAIN_TIMEOUT", "1s");
    let instance = instance.start().await?;
    let fleet = Fleet::start(&site, &[instance.grpc], 0, 4, BRISK).await?;
    drop(instance.ask_to_stop().ended().await);
    drop(fleet);
    // Two were drained, two were on a lost instance, five minutes ago.
    let lost = absent_instance(SAME_KEY, "-5 minutes");
    let away = format!(
        "UPDATE agent_state SET online_until = now() - interval '5 minutes'; {lost};
         UPDATE agent_state SET online_until = NULL, cause = 'connected', instance_id = '{ABSENT}'
          WHERE agent_id IN (SELECT agent_id FROM agent_state ORDER BY agent_id LIMIT 2)"
    );
    site.psql(&away).await?;
    let often = |timing: &mut Timing| timing.lease_renewal = Duration::from_millis(100);
    let instance = site.instance().timing(often).start().await?;
    looks_several_times(&instance).await?;
    let online = "SELECT count(*) FROM agent_state WHERE presence = 'online'";
    site.expect(online, "4").await?; // Their grace period has not ended.
    site.psql("UPDATE sweep_pause SET until = now()").await?;
    site.becomes(online, "0").await
}

/// The only instance is killed and started again before its lease expires. Its agents come back a minute after the expiry.
#[tokio::test(flavor = "multi_thread")]
async fn agents_of_a_killed_instance_that_starts_again_get_the_grace_of_an_outage() -> Result<()> {
    let site = Site::new().await?;
    let killed = site.server_process().start().await?;
    let proxy = Proxy::start(vec![killed.grpc]).await?;
    let fleet = Fleet::reporting(&site, &[proxy.address()], 4, BRISK).await?;
    proxy.refuse(true)?;
    killed.kill().await?;
    let often = |timing: &mut Timing| timing.lease_renewal = Duration::from_millis(100);
    let instance = site.instance().timing(often).start().await?;
    let expired = "UPDATE ingest_instances SET expires_at = now() - interval '1 minute'
                    WHERE started_at = (SELECT min(started_at) FROM ingest_instances)";
    site.psql(expired).await?;
    looks_several_times(&instance).await?;
    proxy.set_targets(vec![instance.grpc]);
    proxy.refuse(false)?;
    fleet.all_acked_again().await?;
    fleet.audit(&site).await?;
    ensure!(times_offline(&site).await? == 0);
    let grace = Timing::default().outage_grace.as_secs().to_string();
    site.expect("SELECT extract(epoch FROM outage_grace())::int", &grace)
        .await
}

/// At what it could sweep.
async fn looks_several_times(instance: &Instance) -> Result<()> {
    runs_again(instance.http, "lease_renew", 4).await
}

#[tokio::test]
async fn an_instance_whose_lease_has_expired_sweeps_no_agent() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(without_sweep).start().await?;
    let _fleet = Fleet::start(&site, &[instance.grpc], 0, 2, BRISK).await?;
    let lapsed = "UPDATE ingest_instances SET expires_at = now() - interval '1 hour' RETURNING id";
    let id = site.psql(lapsed).await?;
    let sweep = format!("SELECT leases_fence('{id}', 10), sessions_sweep_batch('{id}', 10, 100)");
    site.expect(&sweep, "0|(0,0)").await?;
    ensure!(times_offline(&site).await? == 0);
    Ok(())
}

#[tokio::test]
async fn an_agent_that_reconnects_after_a_drain_during_a_sweep_stays_online() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(without_sweep).start().await?;
    let _fleet = Fleet::start(&site, &[instance.grpc], 0, 2, BRISK).await?;
    let id = site.psql("SELECT id FROM ingest_instances").await?;
    site.psql("UPDATE agent_state SET online_until = now() - interval '1 second'")
        .await?;
    let returning = "BEGIN;
        UPDATE agent_state SET online_until = NULL
         WHERE agent_id = (SELECT min(agent_id::text)::uuid FROM agent_state);
        SELECT pg_sleep(1); COMMIT";
    // A sweep passes over rows that are locked, and the other agent's may be, by a report.
    let sweep = async {
        site.sleeps().await?;
        let undrained = format!("SELECT undrained FROM sessions_sweep_batch('{id}', 10, 100)");
        site.becomes(&undrained, "1").await
    };
    let (returned, swept) = tokio::join!(site.psql(returning), sweep);
    returned?;
    swept?;
    let state = "SELECT string_agg(presence, ' ' ORDER BY agent_id::text) FROM agent_state";
    site.expect(state, "online offline").await
}

#[tokio::test]
async fn a_fenced_instance_opens_no_stream() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().timing(without_sweep);
    let (_instance, agent) = builder.with_agent(&site).await?;
    site.psql("UPDATE ingest_instances SET fenced = true")
        .await?;
    let refused = agent.refused_heartbeat().await?;
    assert_eq!(refused.reason, "DATABASE_UNAVAILABLE");
    assert!(refused.retry);
    site.expect("SELECT presence, epoch FROM agent_state", "offline|0")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reconnect_when_an_instance_is_killed() -> Result<()> {
    let site = Site::new().await?;
    let absences = faults::instances_killed(&site, 10, 2, BRISK).await?;
    ensure!(!absences.is_empty(), "no agent was on a killed instance");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_is_clean_with_clients_of_every_kind() -> Result<()> {
    let site = Site::new().await?;
    faults::instance_terminated(&site, 10, BRISK).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn late_writes_of_a_suspended_instance_change_nothing() -> Result<()> {
    let site = Site::new().await?;
    let pace = Pace {
        keepalive: Duration::from_secs(1),
        patience: Duration::from_secs(3),
        ..BRISK
    };
    faults::instance_suspended(&site, 10, Duration::from_secs(6), pace).await
}

#[tokio::test]
async fn an_agent_whose_network_is_lost_goes_offline() -> Result<()> {
    let site = Site::new().await?;
    let short = |timing: &mut Timing| {
        timing.heartbeat_interval = Duration::from_millis(100);
        timing.silence_margin = Duration::from_secs(5);
    };
    let instance = site.instance().timing(short).start().await?;
    let proxy = Proxy::start(vec![instance.grpc]).await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat_at(proxy.address()).await?;
    call.report_acked(1..=1).await?;
    proxy.black_hole(true);
    site.becomes("SELECT presence, cause FROM agent_state", "offline|lost")
        .await
}

#[tokio::test]
async fn an_agent_that_stops_reading_is_closed_and_offline() -> Result<()> {
    let site = Site::new().await?;
    let short = |limits: &mut Limits| limits.send_deadline = Duration::from_secs(1);
    let (_instance, agent) = site.instance().limits(short).with_agent(&site).await?;
    faults::stops_reading(&site, &agent).await?;
    site.becomes("SELECT presence, cause FROM agent_state", "offline|lost")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn presence_is_right_after_every_hop_between_instances() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.instance().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    faults::agents_hop(&site, addresses, 20, 5).await
}

/// How long an issued JWT may take to the client on a slow machine.
const ON_THE_WAY: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn no_jwt_is_renewed_after_the_revocation() -> Result<()> {
    let site = Site::new().await?;
    let eager = |timing: &mut Timing| timing.renew_before = Duration::from_secs(24 * 3600 - 1);
    let instances = site.instance().timing(eager).start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let (count, late) = faults::renewals_raced(&site, addresses, 0..20).await?;
    ensure!(count > 0, "nothing was renewed");
    ensure!(late.iter().all(|late| *late < ON_THE_WAY), "{late:?}");
    Ok(())
}
