//! A primary and its synchronous standby: the standby is cut off, the primary freezes, and the standby takes over.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use svc_harness::Balance;
use svc_sandbox::Postgres;
use tokio::time::sleep;

use crate::{Fleet, PATIENCE, Pace, Proxy, QueueKind, Site, eventually, times_offline};

const WAITING: &str = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
/// The highest numbers that the database knows, of all agents together.
const ACKED: &str = "SELECT sum(acked_seq) FROM agent_state";
/// How often agents lose their connections while the standby is cut off.
const RECONNECT: Duration = Duration::from_secs(3);

/// Who ends the waits of commits for a standby that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitWaits {
    /// An operator cancels them, again and again.
    Cancelled,
    /// Nobody does. The service gives its calls up by itself.
    Undisturbed,
}

/// A site and the standby of its server, which has every commit that the server has confirmed. It follows through
/// the proxy.
pub async fn replicated_site() -> Result<(Site, Postgres, Proxy)> {
    let mut site = Site::with_own_server().await?;
    let primary = site.postgres();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, primary.port()));
    let link = Proxy::start(vec![address]).await?;
    let standby = primary.standby_through(link.address().port()).await?;
    let wait = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    primary.psql("postgres", wait).await?;
    primary.psql("postgres", "SELECT pg_reload_conf()").await?;
    let follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    site.becomes(follows, "1").await?;
    Ok((site, standby, link))
}

/// Cuts the standby off for `length`, while agents report and reconnect. Then the primary is lost and the standby takes
/// over. It must have every number that was acknowledged.
pub async fn standby_cut_off(
    kind: QueueKind,
    (agents, pace): (u32, Pace),
    waits: CommitWaits,
    length: Duration,
) -> Result<()> {
    let (site, standby, link) = replicated_site().await?;
    let mut site = site.with_queue(kind).await?;
    let instance = site
        .instance()
        .set("DATABASE_URL", both(&mut site, &standby));
    let instance = instance.start().await?;
    let door = Proxy::start(vec![instance.grpc]).await?;
    let fleet = Fleet::reporting(&site, &[door.address()], agents, pace).await?;
    link.black_hole(true);
    let ended = commits_wait(&site, &door, waits, length).await?;
    ensure!(
        ended > 0 || waits == CommitWaits::Undisturbed,
        "no commit waited"
    );
    let visible: u64 = site.psql(ACKED).await?.parse()?;
    site.postgres().stop_immediate().await?;
    link.cut_all();
    has_acknowledged(&standby, &fleet).await?;
    has_visible(&standby, waits, visible).await?;
    standby.promote().await?;
    let _lost = site.replace_postgres(standby);
    fleet.all_acked_again().await?;
    fleet.catches_up().await?;
    fleet.audit(&site).await
}

/// Returns how many waits were cancelled. If there is none for long, it gives up.
async fn commits_wait(
    site: &Site,
    door: &Proxy,
    waits: CommitWaits,
    length: Duration,
) -> Result<u64> {
    let (began, mut reconnected, mut cancelled) = (Instant::now(), Instant::now(), 0);
    let none_yet = |cancelled: u64| waits == CommitWaits::Cancelled && cancelled == 0;
    while began.elapsed() < length || (none_yet(cancelled) && began.elapsed() < PATIENCE) {
        if waits == CommitWaits::Cancelled {
            let cancel = format!("SELECT count(pg_cancel_backend(pid)) {WAITING}");
            cancelled += site.psql(&cancel).await?.parse::<u64>()?;
        }
        if reconnected.elapsed() > RECONNECT {
            door.cut_all();
            reconnected = Instant::now();
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(cancelled)
}

/// Freezes the primary, and promotes the standby after `length`. Returns how long after the promotion every agent had a
/// new acknowledgement.
pub async fn primary_frozen(
    kind: QueueKind,
    (agents, pace): (u32, Pace),
    length: Duration,
) -> Result<Duration> {
    let (site, standby, _link) = replicated_site().await?;
    let mut site = site.with_queue(kind).await?;
    let instances = site
        .instance()
        .set("DATABASE_URL", both(&mut site, &standby));
    let instances = instances.start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, agents, pace).await?;
    let streams = fleet.streams();
    site.postgres().freeze()?;
    sleep(length).await;
    standby.promote().await?;
    let promoted = Instant::now();
    let _frozen = site.replace_postgres(standby);
    fleet.all_acked_since(promoted).await?;
    let took = promoted.elapsed();
    fleet.catches_up().await?;
    fleet.audit(&site).await?;
    ensure!(fleet.streams() == streams, "agents lost their streams");
    ensure!(times_offline(&site).await? == 0, "an agent was offline");
    Ok(took)
}

/// The URL of the site's database on its server and on the standby.
fn both(site: &mut Site, standby: &Postgres) -> String {
    let (primary, standby) = (site.postgres().port(), standby.port());
    format!("postgres://svc@127.0.0.1:{primary},127.0.0.1:{standby}/svc")
}

/// Waits until the standby has replayed every acknowledged number. It must not be promoted yet: the service would store
/// what it still has in its queue, and hide a loss.
async fn has_acknowledged(standby: &Postgres, fleet: &Fleet) -> Result<()> {
    let balances = fleet.balances();
    let mut missing = u64::MAX;
    let replayed = eventually("the standby has what was acknowledged", async || {
        let kept = stored(standby).await.unwrap_or_default();
        let lost = |balance: &Balance| {
            let kept = kept.get(&balance.agent_id).copied().unwrap_or_default();
            balance.acked.saturating_sub(kept)
        };
        missing = balances.iter().map(lost).sum();
        missing == 0
    });
    let replayed = replayed.await;
    replayed.with_context(|| format!("{missing} acknowledged numbers are missing"))
}

/// Only cancelled commits were visible on the primary although the standby does not have them.
async fn has_visible(standby: &Postgres, waits: CommitWaits, visible: u64) -> Result<()> {
    if waits == CommitWaits::Cancelled {
        let kept: u64 = standby.psql("svc", ACKED).await?.parse()?;
        ensure!(visible > kept, "no cancelled commit was visible");
        return Ok(());
    }
    eventually("the standby has what was visible", async || {
        let kept = standby.psql("svc", ACKED).await.unwrap_or_default();
        kept.parse::<u64>().is_ok_and(|kept| kept >= visible)
    })
    .await
}

/// The highest number of each agent that the server has.
async fn stored(server: &Postgres) -> Result<HashMap<String, u64>> {
    let sql = "SELECT agent_id, acked_seq FROM agent_state";
    let rows = server.psql("svc", sql).await?;
    let row = |line: &str| {
        let (agent, acked) = line.split_once('|').context("two columns")?;
        Ok((agent.to_owned(), acked.parse()?))
    };
    rows.lines().map(row).collect()
}
