//! `svc-fleet bench`: the cost of the service beside two baselines, in one run.
//!
//! Absolute figures are not comparable: on a shared machine they move by a quarter from run to run, and another
//! machine gives others. So each stage measures, minutes apart on the same machine, the service and what a
//! service on this stack cannot go below: a bare tonic echo server with the same agents over the same
//! TLS ([`echo`]), a bare loop of the same SQL at the same batch size (`sql.rs`), and a loop that stores the
//! same samples in the narrowest tables (`minimal.rs`). The ratio of two figures cancels the speed of the machine, so thresholds on ratios hold anywhere. Figures of different
//! runs are never compared.
//!
//! Each stage has a deadline, starts its own servers, and stores its result before the next one starts.

mod climb;
mod costs;
pub mod echo;
mod history;
mod load;
mod minimal;
mod outages;
mod render;
mod results;
mod sizes;
mod sql;
mod stages;
mod system;
mod thresholds;

use std::{
    io::{Write, stderr, stdout},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use tokio::time::timeout;

pub use self::render::{RenderArgs, render};
use self::{results::Results, sizes::Sizes};
use crate::lab::{Lab, Settings};

/// A stage that takes longer is cancelled.
const STAGE_TIMEOUT: Duration = Duration::from_mins(40);
/// Most of the time is for writing the samples.
const HISTORY_TIMEOUT: Duration = Duration::from_mins(90);
/// Its twelve steps take 33 minutes if all agents connect in time.
const CLIMB_TIMEOUT: Duration = Duration::from_mins(60);

#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Run only these stages, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Stage>,
    /// Small fleets and short windows, in minutes; thresholds are twice as wide
    #[arg(long)]
    quick: bool,
    /// The name of the results; stages that are already stored under it are kept
    #[arg(long, value_name = "NAME", default_value = "latest")]
    name: String,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
    /// Divide the size of all fleets by this, to try the stages out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    divide: u32,
}

/// The stages, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// Memory per connected agent, idle and after traffic; also of the bare echo server
    Rss,
    /// CPU per heartbeat at a steady pace; also of the bare echo server, the bare SQL loop and the minimal one
    Pace,
    /// CPU per heartbeat at 333 heartbeats per second, the pace of a comparable service
    Low,
    /// Durable heartbeats per second at saturation, and acknowledgement times at half of that
    Saturate,
    /// PostgreSQL's CPU at a low rate on ten instances, and on one
    Instances,
    /// Disk and WAL bytes per sample, compaction, and pages of history that are read back
    History,
    /// Compaction of one hour of 100,000 hosts, 12 million samples: duration, memory, pages read. Only by its name
    Hour,
    /// Registrations per second, from token to JWT
    Enrol,
    /// TLS handshakes with client certificates per second
    Handshake,
    /// All connections cut at the same time
    Storm,
    /// An instance killed, its agents on another one
    Kill,
    /// All instances killed, then stopped, and started again: one, and three
    Restart,
    /// CPU and memory at one pace as the fleet grows
    Growth,
    /// Fifty thousand agents on three instances for ten minutes
    Fifty,
    /// More and more agents and instances, until the machine is used up
    Climb,
}

impl Stage {
    fn timeout(self) -> Duration {
        match self {
            Stage::History | Stage::Hour => HISTORY_TIMEOUT,
            Stage::Climb => CLIMB_TIMEOUT,
            _ => STAGE_TIMEOUT,
        }
    }

    fn all(quick: bool) -> Vec<Stage> {
        use Stage::*;
        match quick {
            true => vec![Rss, Pace, Saturate, Enrol, Handshake, Storm],
            false => vec![
                Rss, Pace, Low, Saturate, Instances, History, Enrol, Handshake, Storm, Kill,
                Restart, Growth, Fifty, Climb,
            ],
        }
    }
}

/// Returns whether all stages ran and all thresholds were met.
pub async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let stages = match args.only.is_empty() {
        true => Stage::all(args.quick),
        false => args.only.clone(),
    };
    let sizes = Sizes::new(args.quick, args.divide);
    let path = args.results.join(format!("{}.json", args.name));
    let mut results = Results::load(&path, args.quick, args.divide);
    results.postgres = postgres_settings().await?;
    let mut failed = false;
    for stage in stages {
        note(&format!("{stage:?}"));
        match attempt(stage, &sizes, &mut results).await {
            Ok(()) => results.save(&path)?,
            Err(error) => {
                failed = true;
                note(&format!("{stage:?} FAILED: {error:#}"));
            }
        }
    }
    let thresholds = thresholds::check(&results);
    writeln!(stdout(), "{}", render::text(&results, &thresholds))?;
    writeln!(stdout(), "stored in {}", path.display())?;
    Ok(!failed && thresholds.iter().all(|threshold| threshold.met()))
}

/// As the labs of all stages have them.
async fn postgres_settings() -> anyhow::Result<String> {
    let lab = Lab::start(Settings {
        instances: 0,
        interval: Duration::ZERO,
        durable: true,
    });
    lab.await?.postgres_settings().await
}

/// A stage that fails or takes too long does not prevent the others.
async fn attempt(stage: Stage, sizes: &Sizes, results: &mut Results) -> anyhow::Result<()> {
    let run = timeout(stage.timeout(), stages::run(stage, sizes, results));
    run.await.context("it took too long")?
}

/// Progress goes to standard error.
fn note(text: &str) {
    let _ = writeln!(stderr(), "bench: {text}");
}
