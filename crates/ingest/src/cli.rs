//! The command line. `svc-ingest` alone serves; the rest is for administrators.
//!
//! Exit codes: 0 done; 1 it failed; 2 the configuration or the call is wrong.

mod actor;
mod agent;
mod consume;
mod database;
mod dev;
mod doctor;
mod host;
mod key;
mod labels;
mod migrate;
mod output;
mod select;
mod serve;
mod status;
mod terminal;
mod time;
mod token;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Problems;
pub use output::Output;
use svc_store::StoreError;

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
    /// Consume the metrics queue, beside servers with INGEST_CONSUME=false
    Consume,
    /// Run a whole system on this machine: PostgreSQL, certificates, key and service
    Dev(dev::Args),
    /// Bring the database schema up to date
    Migrate(migrate::Args),
    /// Enrolment tokens, which admit new agents
    #[command(subcommand)]
    Token(token::Command),
    /// Agents, and what is decided about them
    #[command(subcommand)]
    Agent(agent::Command),
    /// The machines that agents run on
    #[command(subcommand)]
    Host(host::Command),
    /// The whole at a glance: tokens, agents, hosts and live instances
    Status(status::Args),
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
        Command::Consume => consume::run().await,
        Command::Dev(args) => dev::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Token(command) => token::run(command).await,
        Command::Agent(command) => agent::run(command).await,
        Command::Host(command) => host::run(command).await,
        Command::Status(args) => status::run(args).await,
        Command::Key(command) => key::run(command),
        Command::Doctor(args) => doctor::run(args).await,
    };
    outcome.unwrap_or_else(|error| report(&error))
}

/// A call that cannot be meant so: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Problems that a person must mend are listed one a line; all else is one chain of causes.
fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        for problem in &problems.0 {
            eprintln!("svc-ingest: {problem}");
        }
        return ExitCode::from(2);
    }
    match error.downcast_ref::<StoreError>() {
        Some(error) => eprintln!("svc-ingest: {}", database::explain(error)),
        None => eprintln!("svc-ingest: {error:#}"),
    }
    if error.is::<Usage>() {
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}
