//! The command line. Without a command `svc-console` serves.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong configuration or wrong usage.

mod output;
mod releases;
mod user;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use svc_common::{http::healthcheck, settings::use_file, signals::stop_on_signals};

use crate::{
    config::{self, Config, Database, log_settings},
    server::Server,
};
use output::{print, report};

#[derive(Debug, Parser)]
#[command(
    name = "svc-console",
    version = crate::VERSION,
    about,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "The console is configured by environment variables alone: docs/console.md lists them."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where the variables come from if the environment has no DATABASE_URL; `FILE.d/*.env` is read too
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "/etc/svc/console.env"
    )]
    env_file: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the console (the default command)
    Serve,
    /// Bring the schema `console` up to date
    Migrate,
    /// Manage the people who may use the console
    #[command(subcommand)]
    User(user::Command),
    /// Manage the agent's releases that this console offers to hosts
    #[command(subcommand)]
    Releases(releases::Command),
    /// Ask the console on this machine whether it is healthy (for containers)
    Healthcheck,
}

/// The command line as data, for the manual.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, runs the command, and returns its exit code.
pub async fn run() -> ExitCode {
    let Cli { command, env_file } = Cli::parse();
    use_file(&env_file);
    let outcome = match command.unwrap_or(Command::Serve) {
        Command::Serve => serve().await,
        Command::Migrate => migrate().await,
        Command::User(command) => user::run(command).await,
        Command::Releases(command) => releases::run(command),
        Command::Healthcheck => check_health().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

async fn serve() -> anyhow::Result<()> {
    log_settings().start();
    let server = Server::bind(Config::from_env()?).await?;
    server.run(stop_on_signals()?).await?;
    tracing::info!("stopped");
    Ok(())
}

async fn check_health() -> anyhow::Result<()> {
    let (address, transport) = config::bound()?;
    Ok(healthcheck(address, transport).await?)
}

async fn migrate() -> anyhow::Result<()> {
    let store = Database::from_env()?.store()?;
    for migration in store.console_migrate().await?.applied {
        print(&format!("applied {migration}\n"));
    }
    Ok(())
}
