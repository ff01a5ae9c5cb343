//! `svc-fleet bench`: the cost of the service beside its lower bounds, in one run.
//!
//! Absolute figures are not comparable: on a shared machine they move by a quarter from run to run, and another
//! machine gives others. So each stage measures, minutes apart on the same machine, the service and what a
//! service on this stack cannot go below: a bare tonic echo server with the same agents over the same
//! TLS (`echo.rs`), a bare loop of the same SQL at the same batch size (`sql.rs`), and a loop that stores the
//! same samples in the narrowest tables (`minimal.rs`). The ratio of two figures cancels the speed of the machine, so
//! goals for ratios hold anywhere. Figures of different runs are never compared.
//!
//! Each stage has a deadline, starts its own servers, and stores its result before the next one starts.

mod climb;
mod compaction;
mod connections;
mod costs;
pub mod echo;
mod history;
mod hour;
mod load;
mod minimal;
mod pages;
mod render;
pub mod restart;
pub mod results;
pub mod scenario;
mod sizes;
mod sql;
mod system;

use std::{
    io::{Write, stdout},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use clap::ValueEnum;
use tokio::time::timeout;

pub use self::render::{RenderArgs, render};
use self::{
    results::{Results, Stage},
    sizes::Scale,
    system::SERVICE,
};
use crate::{
    figures::Figures,
    fleet::note,
    lab::{Lab, Settings},
};

/// A stage that takes longer is cancelled.
const STAGE_TIMEOUT: Duration = Duration::from_mins(40);
/// Most of the time is for writing the samples.
const HISTORY_TIMEOUT: Duration = Duration::from_mins(90);
/// Its twelve steps take 33 minutes if all agents connect in time.
const CLIMB_TIMEOUT: Duration = Duration::from_mins(60);

#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Run only these stages, separated by commas; default: all except `hour`
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Stage>,
    /// Divide the size of all fleets by this, to try the stages out; ratios may then be twice as high
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    divide: u32,
    /// The name of the results; stages that are already stored under it are kept
    #[arg(long, value_name = "NAME", default_value = "latest")]
    name: String,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
}

/// Returns whether all stages ran and met their goals.
pub async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let mut stages = args.only.clone();
    if stages.is_empty() {
        stages.extend(
            Stage::value_variants()
                .iter()
                .filter(|stage| **stage != Stage::Hour),
        );
    }
    let path = args.results.join(format!("{}.json", args.name));
    let mut results = Results::load(&path, args.divide)?;
    let postgres = postgres_settings().await?;
    let mut passed = true;
    for stage in stages {
        note(&format!("{stage:?}"));
        match attempt(stage, Scale(args.divide)).await {
            Ok(figures) => {
                let measured = results.add(stage, figures, &postgres);
                passed &= measured.figures.goals.iter().all(|goal| goal.met());
                writeln!(stdout(), "{stage:?}\n\n{}", render::text(measured))?;
                results.save(&path)?;
            }
            Err(error) => {
                passed = false;
                note(&format!("{stage:?} FAILED: {error:#}"));
            }
        }
    }
    writeln!(stdout(), "stored in {}", path.display())?;
    Ok(passed)
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
async fn attempt(stage: Stage, scale: Scale) -> anyhow::Result<Figures> {
    let limit = match stage {
        Stage::History | Stage::Hour => HISTORY_TIMEOUT,
        Stage::Climb => CLIMB_TIMEOUT,
        _ => STAGE_TIMEOUT,
    };
    let measuring = timeout(limit, measure(stage, scale));
    measuring.await.context("it took too long")?
}

async fn measure(stage: Stage, scale: Scale) -> anyhow::Result<Figures> {
    match stage {
        Stage::Rss => costs::rss(scale).await,
        Stage::Pace => costs::pace(scale).await,
        Stage::Saturate => costs::saturate(scale).await,
        Stage::Instances => costs::instances(scale).await,
        Stage::History => history::run(scale).await,
        Stage::Hour => hour::run(scale).await,
        Stage::Enrol => connections::enrol(scale).await,
        Stage::Storm => {
            let (agents, each) = (scale.agents(5_000), Duration::from_secs(5));
            connections::storm(SERVICE, agents, each).await
        }
        Stage::Restart => restart::stage(scale).await,
        Stage::Climb => climb::run(scale).await,
    }
}
