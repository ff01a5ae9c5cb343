//! The command line. Without a command, `svc-agent` runs the agent.
//!
//! Exit codes: 0 success; 1 failure; 2 the settings or the arguments are wrong.

mod check;
mod flags;
mod jwt;
mod output;
mod run;
mod sample;
mod status;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::Problems;
pub use output::Output;
use output::OutputArgs;

#[derive(Debug, Parser)]
#[command(
    name = "svc-agent",
    version = crate::release::version(),
    about,
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Settings are read from /etc/svc/agent.toml, under the names of the flags with `_` for `-`. \
                  Variables (SVC_AGENT_…) override the file, and flags override both."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent (the default command)
    Run,
    /// Show the agent's identity, enrolment, connection, and unsent samples
    Status(OutputArgs),
    /// Check everything that running needs, without changing anything
    Check,
    /// Print the agent's current JWT, for scripts on this machine (root or the agent's user)
    Jwt,
    /// Take one sample of this machine and print it
    Sample(OutputArgs),
}

/// The command line as data, for the manual.
pub fn command() -> clap::Command {
    Cli::command().args(flags::args())
}

/// Parses the arguments, runs the command, and returns its exit code.
pub fn run() -> ExitCode {
    let matches = command().get_matches();
    let flags = flags::given(&matches);
    let Cli { command } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match command.unwrap_or(Command::Run) {
        Command::Run => run::run(&flags),
        Command::Status(args) => status::run(&flags, &args),
        Command::Check => on_one_thread(check::run(&flags)),
        Command::Jwt => jwt::run(&flags),
        Command::Sample(args) => on_one_thread(sample::run(&args)),
    };
    outcome.unwrap_or_else(|error| report(&error))
}

/// The agent runs on one thread, and a second one for the disk.
fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()?.block_on(work)
}

/// Prints problems with the settings one per line, any other error as a chain of causes.
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
