//! The command line. Without a command `svc-console` serves.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong configuration or wrong usage.

mod healthcheck;
mod output;
mod user;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use svc_common::settings::use_file;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Database, log_settings},
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
        Command::Healthcheck => healthcheck::run().await,
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

async fn migrate() -> anyhow::Result<()> {
    let store = Database::from_env()?.store()?;
    for migration in store.console_migrate().await?.applied {
        print(&format!("applied {migration}\n"));
    }
    Ok(())
}

/// The first signal requests a clean stop; a second one ends the process at once.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let requested = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping");
        requested.cancel();
        either(&mut terminate, &mut interrupt).await;
        std::process::exit(1);
    });
    Ok(stop)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
