//! The stages about connections that are lost: all of them cut at once, an instance killed, all instances restarted.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    load::{Load, TIMEOUT},
    results::{Kill, Restart, Storm},
    sizes::Sizes,
    system::{SERVICE, System, SystemKind},
};
use crate::{fleet::Totals, plan::Plan, run::report::Quantiles};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The default of INGEST_DB_POOL_SIZE, plus the connection that listens for notifications.
const POOL: u64 = 16 + 1;
/// Longer than the graces of agents after a restart: a lease of 15 s, and 150 s.
const GRACES: Duration = Duration::from_secs(180);

pub async fn storm(sizes: &Sizes) -> anyhow::Result<Storm> {
    let agents = sizes.storm_agents;
    let load = Load::of(SERVICE, agents, Duration::from_secs(5), sizes).await?;
    let before = load.system.usage().await?;
    let began = Instant::now();
    let mark = load.fleet.mark()?;
    load.fleet.order(|orders| orders.cuts += 1)?;
    let again = |totals: &Totals| totals.counts.streams >= 2 * u64::from(agents);
    load.fleet
        .until("all agents are connected again", TIMEOUT, again)
        .await?;
    let connected = began.elapsed();
    load.fleet.all_back(mark, TIMEOUT).await?;
    let (back, after) = (began.elapsed(), load.system.usage().await?);
    load.finish().await?;
    let service = after.services.cpu_us - before.services.cpu_us;
    Ok(Storm {
        agents,
        connected_seconds: connected.as_secs_f64(),
        back_seconds: back.as_secs_f64(),
        service_us: service as f64 / f64::from(agents),
        statements: after.statements - before.statements,
    })
}

/// All agents connect to the first of two instances, which is then killed.
pub async fn kill(sizes: &Sizes) -> anyhow::Result<Kill> {
    let agents = sizes.kill_agents;
    let system = System::start(SystemKind::Service { instances: 2 }).await?;
    let plan = Plan {
        interval: Some(Duration::from_secs(30)),
        ramp: sizes.ramp(agents),
        spread: false,
        ..system.plan(agents).await?
    };
    let mut load = Load::start(system, plan).await?;
    load.fleet.open_window();
    let lab = load.system.lab()?;
    lab.instances.remove(0).kill().await?;
    let mark = load.fleet.mark()?;
    let (url, began) = (lab.database_url(), Instant::now());
    let most_connections = most_connections(&url, load.fleet.all_back(mark, TIMEOUT)).await?;
    let back = began.elapsed();
    let absence = Quantiles::of(&load.fleet.totals().window.absence);
    load.finish().await?;
    Ok(Kill {
        agents,
        absence,
        back_seconds: back.as_secs_f64(),
        most_connections,
        pool: POOL,
    })
}

/// All instances are killed and started again, then stopped and started again. Whoever is not back when the graces have
/// ended is offline.
pub async fn restart(instances: usize, sizes: &Sizes) -> anyhow::Result<Restart> {
    let agents = sizes.kill_agents;
    let (kind, each) = (SystemKind::Service { instances }, Duration::from_secs(30));
    let mut load = Load::of(kind, agents, each, sizes).await?;
    let (mut up, mut back) = ([0.0; 2], [0.0; 2]);
    for (round, signal) in [Signal::KILL, Signal::TERM].into_iter().enumerate() {
        up[round] = load.system.lab()?.restart_all(signal).await?.as_secs_f64();
        let mark = load.fleet.mark()?;
        back[round] = load.fleet.all_back(mark, TIMEOUT).await?.as_secs_f64();
    }
    sleep(GRACES).await;
    let offline = load.system.lab()?.times_offline().await?;
    load.finish().await?;
    Ok(Restart {
        agents,
        instances,
        killed_up_seconds: up[0],
        killed_back_seconds: back[0],
        stopped_up_seconds: up[1],
        stopped_back_seconds: back[1],
        offline,
    })
}

/// Runs `work`, and returns the largest number of connections to PostgreSQL meanwhile, without its own.
async fn most_connections(
    url: &str,
    work: impl Future<Output = anyhow::Result<Duration>>,
) -> anyhow::Result<u64> {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let mut work = std::pin::pin!(work);
    let mut most = 0;
    loop {
        tokio::select! {
            done = &mut work => return done.map(|_| most),
            () = sleep(POLL_INTERVAL) => most = most.max(svc_sandbox::query(url, sql).await?.parse()?),
        }
    }
}
