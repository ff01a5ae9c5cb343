//! The command line.

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

use anyhow::bail;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    bench::{
        self, BenchArgs, RenderArgs,
        echo::{self, EchoArgs},
        scenario::{self, ScenarioArgs},
    },
    run::{self, RunArgs},
    simulate::{self, SimulateArgs},
    worker,
};

#[derive(Debug, Parser)]
#[command(
    name = "svc-fleet",
    version,
    about = "Virtual agents, scenarios and benchmarks for svc-ingest"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run virtual agents against a service, for a bounded time
    Run(Box<RunArgs>),
    /// Run a scenario on a system of its own, and check its expectations
    Scenario(ScenarioArgs),
    /// Measure the service beside a bare echo server and a bare SQL loop, and check the goals
    Bench(BenchArgs),
    /// Write stored results into the documentation
    Render(RenderArgs),
    /// Simulate ten million agents in fifty cells through faults, moves and storms, and check the limits
    Simulate(SimulateArgs),
    /// Run the bare echo server, a baseline of the benchmark
    #[command(hide = true)]
    BareEcho(EchoArgs),
    /// Run a part of a fleet; the program starts itself with this
    #[command(hide = true)]
    Worker,
}

/// Exit codes: 0 all checks passed, 1 a check failed, 2 the command could not run.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let log = tracing_subscriber::fmt().with_writer(stderr);
    log.with_env_filter("warn").init();
    match dispatch(arguments.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(stderr(), "svc-fleet: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<bool> {
    if let Command::Worker = command {
        return worker::run().map(|()| true);
    }
    if let Command::Simulate(args) = &command {
        return simulate::run(args);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        match command {
            Command::Worker | Command::Simulate(_) => Ok(false),
            Command::Run(args) => run::run(*args).await,
            Command::Scenario(args) => or_interrupted(scenario::run(args)).await,
            Command::Bench(args) => or_interrupted(bench::run(args)).await,
            Command::Render(args) => bench::render(&args).map(|()| true),
            Command::BareEcho(args) => echo::serve(args).await.map(|()| true),
        }
    })
}

/// A signal drops `work`, and dropping it stops every process and removes every folder that it created.
async fn or_interrupted(work: impl Future<Output = anyhow::Result<bool>>) -> anyhow::Result<bool> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminated.recv() => bail!("terminated"),
    }
}
