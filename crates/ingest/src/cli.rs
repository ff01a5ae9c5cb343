//! The command line. `svc-ingest` alone serves; the rest is for administrators.
//!
//! Exit codes: 0 done; 1 it failed; 2 the configuration or the call is wrong.

mod dev;
mod doctor;
mod key;
mod migrate;
mod output;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Problems;
pub use output::Output;

#[derive(Debug, Parser)]
#[command(
    name = "svc-ingest",
    version,
    about,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "The service is configured by environment variables alone: the README lists them."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve agents (what happens without a command, too)
    Serve,
    /// Run a whole system on this machine: PostgreSQL, certificates, key and service
    Dev(dev::Args),
    /// Bring the database schema up to date
    Migrate(migrate::Args),
    /// The key that signs agents' JWTs
    #[command(subcommand)]
    Key(key::Command),
    /// Check configuration, files, ports and database, and say what to mend
    Doctor(doctor::Args),
}

/// Parses the call, runs it, and turns its outcome into an exit code.
pub async fn run() -> ExitCode {
    let outcome = match Cli::parse().command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run().await,
        Command::Dev(args) => dev::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Key(command) => key::run(command),
        Command::Doctor(args) => doctor::run(args).await,
    };
    outcome.unwrap_or_else(|error| report(&error))
}

/// Problems that a person must mend are listed one a line; all else is one chain of causes.
fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        for problem in &problems.0 {
            eprintln!("svc-ingest: {problem}");
        }
        return ExitCode::from(2);
    }
    eprintln!("svc-ingest: {error:#}");
    ExitCode::FAILURE
}
