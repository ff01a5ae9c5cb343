//! `svc-fleet run`: a fleet against a service that runs already, bounded in time.

pub mod audit;
mod progress;
pub mod report;
pub mod service;

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use tokio::time::{Instant, sleep};

use self::{audit::Books, progress::Progress, report::Report, service::Scrape};
use crate::{
    fleet::{Fleet, read_pem},
    lab::ingest,
    plan::{Plan, Token},
    state,
};

/// For what was taken to be acknowledged after the fleet has fallen quiet.
const SETTLE_PATIENCE: Duration = Duration::from_secs(60);
/// A run ends, whatever was asked for.
const LONGEST: Duration = Duration::from_hours(24);
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The gRPC port of each instance: host:port, separated by commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    target: Vec<String>,
    /// The HTTP port of each instance, whose metrics go into the report
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    http: Vec<String>,
    /// How many virtual agents
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: u32,
    /// How often each reports; as the service says, if it is not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// How long it takes until all are connected
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    ramp: Duration,
    /// How long they report after that
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    duration: Duration,
    /// Samples taken at each tick
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    report_samples: u32,
    /// As fast as the service acknowledges, and no faster
    #[arg(long)]
    closed_loop: bool,
    /// An enrolment token that approves by itself and has enough uses
    #[arg(long, env = "SVC_FLEET_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The service's database: a token is made there, and the books are held against it
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Who vouches for the service's certificate, PEM; on loopback any certificate will do
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// The name in the service's certificate
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    server_name: String,
    /// Worker processes; 0: as many as are needed
    #[arg(long, value_name = "N", default_value_t = 0)]
    processes: u32,
    /// The same seed is the same agents
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Keeps the seed and the JWTs here, so that the next run need not register
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Writes the report here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the report here, as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Allows a target that is not on this machine
    #[arg(long)]
    i_own_this_target: bool,
}

/// `90s`, `5m`, `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    let unsigned = Duration::try_from(signed).map_err(|_| "a time is not negative".to_owned())?;
    match unsigned <= LONGEST {
        true => Ok(unsigned),
        false => Err("at most a day".into()),
    }
}

/// Whether the books balance.
pub async fn run(args: RunArgs) -> anyhow::Result<bool> {
    let plan = plan(&args).await?;
    let http = addresses(&args.http)?;
    let before = Scrape::of(&http).await?;
    let fleet = Fleet::start(plan, args.processes)?;
    watch(&fleet, args.ramp + args.duration).await?;
    let (running, after) = (fleet.totals(), Scrape::of(&http).await?);
    let settled = fleet.settle(SETTLE_PATIENCE).await;
    let mut outcome = fleet.finish().await?;
    outcome.totals.rss_kib = running.rss_kib;
    let books = Books::of(
        &outcome,
        args.database_url.as_deref(),
        u64::from(args.agents),
    )
    .await?;
    let mut report = Report::new(args.agents, &outcome.totals, books, settled.err());
    if !http.is_empty() {
        let reports = running.counts.reports_acked;
        report.service = Some(before.until(&after, reports, args.agents));
    }
    report.write(args.json.as_deref(), args.markdown.as_deref())?;
    report.print()?;
    Ok(report.passed())
}

async fn plan(args: &RunArgs) -> anyhow::Result<Plan> {
    let targets = addresses(&args.target)?;
    let local = targets.iter().all(|target| target.ip().is_loopback());
    if !local {
        ensure!(
            args.i_own_this_target,
            "a target is not on this machine: a fleet can take a service down. If it is yours, add --i-own-this-target"
        );
        ensure!(
            args.ca_cert.is_some(),
            "a target that is not on this machine needs --ca-cert: the token must not go to a stranger"
        );
    }
    let seed = match &args.state {
        Some(folder) => state::seed(folder, args.seed.as_deref())?,
        None => args.seed.clone().unwrap_or_else(state::random_seed),
    };
    Ok(Plan {
        server_name: args.server_name.clone(),
        ca_pem: args.ca_cert.as_deref().map(read_pem).transpose()?,
        seed: Token(seed),
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
        (None, Some(url)) => ingest::token(url, args.agents).await,
        (None, None) => bail!("give --token, or --database-url to make one"),
    }
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

/// Until the time is over, Ctrl-C is typed, or a worker is gone.
async fn watch(fleet: &Fleet, time: Duration) -> anyhow::Result<()> {
    let mut progress = Progress::new(fleet.agents());
    let end = Instant::now() + time;
    let watching = async {
        while Instant::now() < end {
            fleet.healthy()?;
            progress.show(&fleet.totals());
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        watched = watching => watched?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    progress.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_mins(90)));
        assert!(duration("-1s").is_err() && duration("25h").is_err() && duration("soon").is_err());
    }
}
