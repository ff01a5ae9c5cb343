//! `svc-fleet run`: a fleet against a running service, for a limited time.

pub mod report;
pub mod service;

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use svc_harness::AuditReport;
use tokio::time::{Instant, sleep_until};

use self::{report::Report, service::Scrape};
use crate::{
    fleet::{Fleet, note},
    lab::create_token,
    plan::{Plan, Secret},
    state,
};

/// For all samples to be acknowledged after the fleet has stopped taking them.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// No option accepts a longer time.
const LONGEST: Duration = Duration::from_hours(24);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The gRPC port of each instance: host:port, separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    target: Vec<String>,
    /// The HTTP port of each instance; its metrics go into the report
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    http: Vec<String>,
    /// Number of virtual agents
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: u32,
    /// Time between two reports of an agent; default: the interval of the service
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Time over which the agents connect
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    ramp: Duration,
    /// Time for which they report after that
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    duration: Duration,
    /// Samples taken at each tick
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    report_samples: u32,
    /// Take no sample while two reports are unacknowledged
    #[arg(long)]
    closed_loop: bool,
    /// An auto-approving enrolment token with enough uses
    #[arg(long, env = "SVC_FLEET_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The service's database, to create a token there and to audit the stored samples
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// CA certificates in PEM; on loopback the default is to accept any certificate
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// The name in the service's certificate
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    server_name: String,
    /// Number of worker processes; 0: as many as the agents need
    #[arg(long, value_name = "N", default_value_t = 0)]
    processes: u32,
    /// The same seed gives the same agents
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Keep the seed and the JWTs here, so that the next run need not register
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Write the report here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Allow a target that is not on this machine
    #[arg(long)]
    i_own_this_target: bool,
}

/// `90s`, `5m`, `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    let unsigned =
        Duration::try_from(signed).map_err(|_| "a time must not be negative".to_owned())?;
    match unsigned <= LONGEST {
        true => Ok(unsigned),
        false => Err("at most a day".into()),
    }
}

/// Returns whether the run passed.
pub async fn run(args: RunArgs) -> anyhow::Result<bool> {
    let plan = plan(&args).await?;
    let http = addresses(&args.http)?;
    let before = Scrape::of(&http).await?;
    let fleet = Fleet::start(plan, args.processes)?;
    watch(&fleet, args.ramp + args.duration).await?;
    let (running, after) = (fleet.totals(), Scrape::of(&http).await?);
    let settled = fleet.settle(SETTLE_TIMEOUT).await;
    let mut outcome = fleet.finish().await?;
    outcome.totals.rss_kib = running.rss_kib;
    let books = AuditReport::of(
        &outcome.balances,
        args.database_url.as_deref(),
        u64::from(args.agents),
    )
    .await?;
    let mut report = Report::new(args.agents, &outcome.totals, books, settled.err());
    if !http.is_empty() {
        let reports = running.counts.reports_acked;
        report.service = Some(before.cost_until(&after, reports, args.agents));
    }
    if let Some(path) = &args.json {
        report.save(path)?;
    }
    report.print()?;
    Ok(report.passed())
}

async fn plan(args: &RunArgs) -> anyhow::Result<Plan> {
    let targets = addresses(&args.target)?;
    let local = targets.iter().all(|target| target.ip().is_loopback());
    if !local {
        ensure!(
            args.i_own_this_target,
            "a target is not on this machine, and a fleet can overload a service: if the service is yours, add --i-own-this-target"
        );
        ensure!(
            args.ca_cert.is_some(),
            "a target that is not on this machine needs --ca-cert: an agent sends the token to it"
        );
    }
    let seed = match &args.state {
        Some(folder) => state::seed(folder, args.seed.as_deref())?,
        None => args.seed.clone().unwrap_or_else(state::random_seed),
    };
    Ok(Plan {
        server_name: args.server_name.clone(),
        ca_pem: args.ca_cert.as_deref().map(read).transpose()?,
        seed: Secret(seed),
        interval: args.interval,
        ramp: args.ramp,
        report_samples: args.report_samples,
        closed_loop: args.closed_loop,
        state: args.state.clone(),
        ..Plan::local(args.agents, targets, token(args).await?)
    })
}

async fn token(args: &RunArgs) -> anyhow::Result<String> {
    match (&args.token, &args.database_url) {
        (Some(token), _) => Ok(token.clone()),
        (None, Some(url)) => create_token(url, args.agents).await,
        (None, None) => bail!("give --token, or --database-url to create one"),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn addresses(targets: &[String]) -> anyhow::Result<Vec<SocketAddr>> {
    let resolve = |target: &String| {
        let mut found = target.to_socket_addrs().with_context(|| target.clone())?;
        found
            .next()
            .with_context(|| format!("{target} has no address"))
    };
    targets.iter().map(resolve).collect()
}

/// Shows the progress until the time is over, Ctrl-C is typed, or a worker fails.
async fn watch(fleet: &Fleet, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    let watching = async {
        while Instant::now() < end {
            fleet.healthy()?;
            note(&fleet.totals().line());
            sleep_until(end.min(Instant::now() + PROGRESS_INTERVAL)).await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        watched = watching => watched,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_bounds() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_mins(90)));
        assert!(duration("-1s").is_err() && duration("25h").is_err() && duration("soon").is_err());
    }
}
