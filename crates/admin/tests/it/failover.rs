//! PostgreSQL fails over to a standby. The old primary stays alive and answers reads, as it does after
//! a switch of the address, so nothing but its refusals tells the service to leave it. Or it was cut off from its
//! standby before, or it freezes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_sandbox::Postgres;
use svc_testkit::{
    Fleet, Instance, Pace, QueueKind, Site, eventually,
    faults::{CommitWaits, behind_proxy, primary_frozen, replicated_site, standby_cut_off},
    health_becomes, times_offline,
};
use url::Url;

const AGENTS: u32 = 8;
const PACE: Pace = Pace {
    every: Duration::from_secs(1),
    ..Pace::BRISK
};

/// Makes the standby the site's server. Returns the old one, which refuses writes from now on.
async fn fail_over(site: &mut Site, standby: Postgres) -> Result<Postgres> {
    site.postgres().set_read_only(true).await?;
    let writing = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL";
    site.becomes(writing, "0").await?;
    standby.promote().await?;
    Ok(site.replace_postgres(standby))
}

/// Every agent is acknowledged again, on the streams that it had; nothing is lost.
async fn goes_on(site: &Site, fleet: &Fleet, instances: &[Instance]) -> Result<Duration> {
    let switched = Instant::now();
    fleet.all_acked_since(switched).await?;
    let took = switched.elapsed();
    fleet.audit(site).await?;
    ensure!(times_offline(site).await? == 0, "an agent was offline");
    for instance in instances {
        instance.serving().await?;
    }
    Ok(took)
}

fn port_of(url: &str) -> Result<u16> {
    Url::parse(url)?.port().context("no port")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_leaves_an_old_primary_that_still_answers_reads() -> Result<()> {
    let (mut site, standby, _link) = replicated_site().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let instances = site.instance().set("DATABASE_URL", url);
    let instances = instances.start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, AGENTS, PACE).await?;
    let streams = fleet.streams();
    proxy.set_targets(vec![([127, 0, 0, 1], standby.port()).into()]);
    let old = fail_over(&mut site, standby).await?;
    goes_on(&site, &fleet, &instances).await?;
    ensure!(fleet.streams() == streams, "agents lost their streams");
    let left = "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'svc-ingest' AND query NOT LIKE '%server_identity%'
                   AND state_change > now() - interval '2 seconds'";
    eventually("nothing uses the old primary", async || {
        old.psql("svc", left).await.is_ok_and(|count| count == "0")
    })
    .await
}

/// The standby is first in the list, and is refused until it is the primary.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_hosts_the_service_uses_the_one_that_accepts_writes() -> Result<()> {
    let (mut site, standby, _link) = replicated_site().await?;
    let primary = port_of(&site.database_url())?;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{primary}", standby.port());
    let url = format!("postgres://svc@{hosts}/svc?target_session_attrs=read-write");
    let instance = site.instance().set("DATABASE_URL", url).start().await?;
    let fleet = Fleet::reporting(&site, &[instance.grpc], AGENTS, PACE).await?;
    let _old = fail_over(&mut site, standby).await?;
    goes_on(&site, &fleet, &[instance]).await?;
    Ok(())
}

/// Nothing stops the old primary: it accepts connections and says that it accepts writes. Its commits wait for the standby that
/// was promoted, and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_does_not_know_that_it_was_replaced_is_left() -> Result<()> {
    let (mut site, standby, _link) = replicated_site().await?;
    let (old, new) = (port_of(&site.database_url())?, standby.port());
    let url = format!("postgres://svc@127.0.0.1:{old},127.0.0.1:{new}/svc");
    let instances = site.instance().set("DATABASE_URL", url);
    let instances = instances.start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, AGENTS, PACE).await?;
    let streams = fleet.streams();
    standby.promote().await?;
    let _old = site.replace_postgres(standby);
    let took = goes_on(&site, &fleet, &instances).await?;
    ensure!(took < Duration::from_secs(30), "{took:?}");
    ensure!(fleet.streams() == streams, "agents lost their streams");
    Ok(())
}

/// Longer than a call may take, and the backstop after it.
const CUT_OFF: Duration = Duration::from_secs(11);

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_sample_is_lost_when_waiting_commits_are_cancelled() -> Result<()> {
    let waits = CommitWaits::Cancelled;
    let length = Duration::from_secs(4);
    QueueKind::each(async |kind| standby_cut_off(kind, (AGENTS, PACE), waits, length).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_sample_is_lost_when_the_service_gives_commits_up() -> Result<()> {
    let waits = CommitWaits::Undisturbed;
    standby_cut_off(QueueKind::Memory, (AGENTS, PACE), waits, CUT_OFF).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_leaves_a_frozen_primary() -> Result<()> {
    let away = Duration::from_secs(6);
    let took = primary_frozen(QueueKind::Memory, (AGENTS, PACE), away).await?;
    ensure!(took < Duration::from_secs(30), "{took:?}");
    Ok(())
}

/// `target_session_attrs=any` lets the service read from the server that refuses its writes.
#[tokio::test(flavor = "multi_thread")]
async fn healthz_is_503_while_the_database_answers_reads_and_refuses_writes() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    let url = format!("{}?target_session_attrs=any", site.database_url());
    let instance = site.instance().set("DATABASE_URL", url);
    let instance = instance.timing(|timing| {
        timing.health_grace = Duration::from_secs(2);
        timing.lease_renewal = Duration::from_millis(500);
    });
    let instance = instance.start().await?;
    site.postgres().set_read_only(true).await?;
    health_becomes(instance.http, 503, "the database has refused writes for ").await?;
    site.postgres().set_read_only(false).await?;
    instance.serving().await
}
