//! The command line. Without a command `svc-ingest` serves; the other commands are for administrators.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong configuration or wrong usage.

mod actor;
mod agent;
mod cell;
mod consume;
mod database;
mod doctor;
mod healthcheck;
mod host;
mod init;
mod key;
mod labels;
mod migrate;
mod output;
mod release;
mod resource;
mod rollout;
mod serve;
mod settings;
mod status;
mod terminal;
mod time;
mod token;
mod trust;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use svc_common::{settings::Problems, text::visible_lines};
use svc_store::StoreError;

pub use output::Output;
use output::OutputArgs;

#[derive(Debug, Parser)]
#[command(
    name = "svc-ingest",
    version = svc_common::VERSION,
    about = "The front door of a fleet: a gRPC ingest service between host agents and PostgreSQL",
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "The service is configured by environment variables alone, which the README lists. Where DATABASE_URL is not \
                  set, they come from /etc/svc/ingest.env and /etc/svc/ingest.env.d/*.env, which `svc-ingest init` makes."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where the variables come from if the environment has no DATABASE_URL; `FILE.d/*.env` is read too
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "/etc/svc/ingest.env"
    )]
    env_file: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make what a first installation needs: database, certificates, keys, settings and a token
    Init(Box<init::Args>),
    /// Serve agents (the default command)
    Serve,
    /// Consume the metrics queue, beside servers with INGEST_CONSUME=false
    Consume,
    /// Bring the database schema up to date
    Migrate(OutputArgs),
    /// Manage enrolment tokens, which admit new agents
    #[command(subcommand)]
    Token(token::Command),
    /// List agents, and decide about them
    #[command(subcommand)]
    Agent(agent::Command),
    /// List the machines that agents run on, and retire them
    #[command(subcommand)]
    Host(host::Command),
    /// Show an overview: tokens, agents, hosts and live instances
    Status(status::Args),
    /// Show the key that signs the agents' JWTs
    #[command(subcommand)]
    Key(key::Command),
    /// Sign releases of these programs, verify them, and add them for agents
    #[command(subcommand)]
    Release(release::Command),
    /// Offer a release to agents in stages, and stop it
    #[command(subcommand)]
    Rollout(rollout::Command),
    /// Set how agents behave, by the labels of their hosts
    #[command(subcommand)]
    Settings(settings::Command),
    /// Change the certificates with which agents verify the service
    #[command(subcommand)]
    Trust(trust::Command),
    /// Move agents between this cell and others, which have databases of their own
    #[command(subcommand)]
    Cell(cell::Command),
    /// Check configuration, files, ports and database, and report what to fix
    Doctor(OutputArgs),
    /// Ask the service on this machine whether it is healthy (for containers)
    Healthcheck,
    #[command(hide = true)]
    InitDatabase,
}

/// The command line as data, for the manual.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the command line, runs the command, and returns its exit code.
pub async fn run() -> ExitCode {
    let Cli { command, env_file } = Cli::parse();
    let command = command.unwrap_or(Command::Serve);
    let without_settings = match &command {
        Command::Init(_) | Command::InitDatabase => true,
        Command::Release(command) => command.is_offline(),
        _ => false,
    };
    if !without_settings {
        svc_common::settings::use_file(&env_file);
    }
    let outcome = match command {
        Command::Init(args) => init::run(*args, &env_file).await,
        Command::Serve => serve::run().await,
        Command::Consume => consume::run().await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Token(command) => token::run(command).await,
        Command::Agent(command) => agent::run(command).await,
        Command::Host(command) => host::run(command).await,
        Command::Status(args) => status::run(args).await,
        Command::Key(command) => key::run(command),
        Command::Release(command) => release::run(command).await,
        Command::Rollout(command) => rollout::run(command).await,
        Command::Settings(command) => settings::run(command).await,
        Command::Trust(command) => trust::run(command).await,
        Command::Cell(command) => cell::run(command).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Healthcheck => healthcheck::run().await,
        Command::InitDatabase => init::database_child().await,
    };
    outcome.unwrap_or_else(|error| report(&error))
}

/// A wrong combination of arguments: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn exit_code(success: bool) -> ExitCode {
    match success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Configuration problems get one line each; any other error is one line with its chain of causes.
fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        for problem in &problems.0 {
            eprintln!("svc-ingest: {problem}");
        }
        return ExitCode::from(2);
    }
    match error.downcast_ref::<StoreError>() {
        Some(error) => eprintln!("svc-ingest: {}", database::explain(error)),
        None => eprintln!("svc-ingest: {}", visible_lines(&format!("{error:#}"))),
    }
    match error.is::<Usage>() {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}
