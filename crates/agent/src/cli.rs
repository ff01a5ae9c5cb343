//! The command line. `svc-agent` alone runs the agent.
//!
//! Exit codes: 0 done; 1 it failed; 2 the configuration or the call is wrong.

mod check;
mod flags;
mod output;
mod run;
mod sample;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Problems;
use flags::FlagArgs;
pub use output::Output;

#[derive(Debug, Parser)]
#[command(
    name = "svc-agent",
    version,
    about,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Settings stand in /etc/svc/agent.toml, under the names of the flags with `_` for `-`; \
                  variables (SVC_AGENT_…) go before the file, and flags before both."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: FlagArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent (what happens without a command, too)
    Run,
    /// Show who this agent is, where it stands, and what waits to be sent
    Status(status::Args),
    /// Try everything that running needs, change nothing, and say what to mend
    Check,
    /// Take one sample of this machine and print it
    Sample(sample::Args),
}

/// Parses the call, runs it, and turns its outcome into an exit code.
pub async fn run() -> ExitCode {
    let Cli { command, flags } = Cli::parse();
    let outcome = match command.unwrap_or(Command::Run) {
        Command::Run => run::run(&flags.0).await,
        Command::Status(args) => status::run(&flags.0, &args),
        Command::Check => check::run(&flags.0).await,
        Command::Sample(args) => sample::run(&args).await,
    };
    outcome.unwrap_or_else(|error| report(&error))
}

/// Problems that a person must mend are listed one a line; all else is one chain of causes.
fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        for problem in &problems.0 {
            eprintln!("svc-agent: {problem}");
        }
        return ExitCode::from(2);
    }
    eprintln!("svc-agent: {error:#}");
    ExitCode::FAILURE
}
