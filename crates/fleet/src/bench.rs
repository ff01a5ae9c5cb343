//! `svc-fleet bench`: what the service costs, beside what cannot be saved, in one run.
//!
//! Invariant: figures are compared only with figures of the same run on the same machine: a bare tonic
//! echo over the same TLS with the same agents, and a bare loop of the same SQL at the same batch size.
//! Every stage has a deadline, starts its own servers and stores its result before the next begins.

mod bars;
pub mod echo;
mod far;
mod load;
mod render;
mod results;
mod sizes;
mod sql;
mod stages;
mod subject;

use std::{
    io::{Write, stderr, stdout},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use tokio::time::timeout;

pub use self::render::{RenderArgs, render};
use self::{results::Results, sizes::Sizes};

/// No stage takes longer, whatever happens.
const STAGE_LIMIT: Duration = Duration::from_mins(40);

#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Only these stages, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Stage>,
    /// Small fleets and short windows: minutes, and bars that fail only at twice their value
    #[arg(long)]
    quick: bool,
    /// The results' name: they are added to those that are there under it
    #[arg(long, value_name = "NAME", default_value = "latest")]
    name: String,
    /// Where results are stored
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
    /// Divides all fleets by this, to try the stages on a busy machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    divide: u32,
}

/// In the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// Memory of a connected agent, idle and after traffic, beside the bare echo's
    Rss,
    /// CPU a heartbeat at a steady pace, beside the bare echo's; the bare SQL loop at the same batch size
    Pace,
    /// CPU a heartbeat at the pace of the peer that was measured: 333 a second
    Low,
    /// Durable heartbeats a second at saturation, and acknowledgement times at half of it
    Saturate,
    /// Registrations a second, from token to JWT
    Enrol,
    /// TLS handshakes a second with client certificates
    Handshake,
    /// All connections cut at one moment
    Storm,
    /// An instance killed: its agents on the sibling
    Kill,
    /// CPU and memory as the fleet grows, at one pace
    Growth,
    /// Fifty thousand agents on as many instances as their files need, for ten minutes
    Fifty,
    /// More and more agents, as far up as memory goes
    Far,
}

impl Stage {
    fn all(quick: bool) -> Vec<Stage> {
        use Stage::*;
        match quick {
            true => vec![Rss, Pace, Saturate, Enrol, Handshake, Storm],
            false => vec![
                Rss, Pace, Low, Saturate, Enrol, Handshake, Storm, Kill, Growth, Fifty, Far,
            ],
        }
    }
}

/// Whether all bars held.
pub async fn run(args: BenchArgs) -> anyhow::Result<bool> {
    let stages = match args.only.is_empty() {
        true => Stage::all(args.quick),
        false => args.only.clone(),
    };
    let sizes = Sizes::new(args.quick, args.divide);
    let path = args.results.join(format!("{}.json", args.name));
    let mut results = Results::load(&path, args.quick, args.divide);
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
    let bars = bars::bars(&results);
    writeln!(stdout(), "{}", render::text(&results, &bars))?;
    writeln!(stdout(), "stored in {}", path.display())?;
    Ok(!failed && bars.iter().all(|bar| bar.held))
}

/// A stage that fails, or takes too long, does not keep the others from being measured.
async fn attempt(stage: Stage, sizes: &Sizes, results: &mut Results) -> anyhow::Result<()> {
    let run = timeout(STAGE_LIMIT, stages::run(stage, sizes, results));
    run.await.context("it did not end in time")?
}

/// For who watches.
fn note(text: &str) {
    let _ = writeln!(stderr(), "bench: {text}");
}
