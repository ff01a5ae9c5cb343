//! `svc-ingest rollout`: offers a release to agents in stages, and stops, resumes and takes it back.

mod view;

use std::{process::ExitCode, time::Duration};

use clap::{ArgGroup, Subcommand};
use serde_json::json;
use svc_common::settings::parse;
use svc_store::{HostRecord, Hours, Labels, NewRollout, Stage, stages};

use super::{
    Usage,
    actor::{Actor, name},
    database::open,
    labels,
    output::{Output, OutputArgs},
    resource,
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Offer a release to agents, stage by stage
    Start(StartArgs),
    /// List rollouts, the newest first
    List(OutputArgs),
    /// Show a rollout, and its agents: those that refused, are unable or are offline first
    Show {
        /// The serial of its release
        serial: i64,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Offer the release to nobody else for now; agents that have it keep it
    Pause(SetArgs),
    /// Go on in the same stage; its soak begins again
    Resume(SetArgs),
    /// Leave a host out
    Skip {
        /// The serial of the release
        serial: i64,
        /// The host: its id, a prefix of it (4 characters or more), or its name
        host: String,
        /// Why, for the record
        #[arg(long, value_parser = name, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Take a release back: pause it, and offer a newer release, which names an older version, at once to all agents that had it
    Back {
        /// The serial of the release that is taken back
        serial: i64,
        /// The serial of the release that takes it back. Agents refuse to go back without its signature
        #[arg(long, value_name = "SERIAL")]
        to: i64,
        /// Why, for the record
        #[arg(long, value_parser = name, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
}

/// Whom an update reaches is never left to a default.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("hosts").required(true).args(["selector", "all"]))]
pub struct StartArgs {
    /// The serial of the release
    #[arg(long)]
    serial: i64,
    /// Hosts with this label, key=value; several labels must all match
    #[arg(long, value_name = "KEY=VALUE")]
    selector: Vec<Labels>,
    /// All hosts
    #[arg(long)]
    all: bool,
    /// Numbers of hosts and shares of them, one after another
    #[arg(long, value_name = "LIST", default_value = "5,1%,10%,100%")]
    stages: String,
    /// How long each stage lasts at least
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = soak)]
    soak: Duration,
    /// When agents are offered the release and stages advance, in UTC, such as 'mon-fri 08:00-16:00' [default: always]
    #[arg(
        long,
        value_name = "HOURS",
        default_value = "",
        hide_default_value = true
    )]
    hours: Hours,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The serial of the release
    serial: i64,
    /// Why, for the record
    #[arg(long, value_parser = name, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Start(args) => start(args).await,
        Command::List(args) => view::list(args).await,
        Command::Show { serial, output } => view::show(serial, output).await,
        Command::Pause(args) => set(args, false).await,
        Command::Resume(args) => set(args, true).await,
        Command::Skip {
            serial,
            host,
            reason,
            by,
            output,
        } => {
            let store = open().await?;
            let host = resource::select::<HostRecord>(&store, &host).await?;
            store
                .rollout_skip(serial, host.id, &by.actor, &reason)
                .await?;
            let done = format!(
                "rollout {serial} leaves out {} ({})",
                host.hostname, host.id
            );
            done_with(output, serial, &done)
        }
        Command::Back {
            serial,
            to,
            reason,
            by,
            output,
        } => {
            let store = open().await?;
            store.rollout_back(serial, to, &by.actor, &reason).await?;
            let done = format!(
                "rollout {serial} is paused, and all agents that had its release are offered {to}"
            );
            done_with(output, to, &done)
        }
    }
}

async fn start(args: StartArgs) -> anyhow::Result<ExitCode> {
    let selector = labels::joined(args.selector)?;
    if !args.all && selector.is_empty() {
        return Err(Usage("--selector needs a label; --all means every host".into()).into());
    }
    let stages: Vec<Stage> = stages(&args.stages).map_err(|error| Usage(error.to_string()))?;
    let rollout = NewRollout {
        serial: args.serial,
        selector: &selector,
        stages: &stages,
        soak: args.soak,
        hours: args.hours,
        undoes: None,
    };
    let store = open().await?;
    store.rollout_start(&rollout, &args.by.actor).await?;
    let done = format!(
        "rollout {0} runs: `svc-ingest rollout show {0}`",
        args.serial
    );
    done_with(args.output, args.serial, &done)
}

async fn set(args: SetArgs, running: bool) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    store
        .rollout_set(args.serial, running, &args.by.actor, &args.reason)
        .await?;
    let state = if running { "runs again" } else { "is paused" };
    let done = format!("rollout {} {state}", args.serial);
    done_with(args.output, args.serial, &done)
}

fn done_with(output: Output, serial: i64, done: &str) -> anyhow::Result<ExitCode> {
    output.print(&json!({ "serial": serial }), || done.to_owned())?;
    Ok(ExitCode::SUCCESS)
}

fn soak(text: &str) -> Result<Duration, String> {
    let most = Duration::from_hours(24 * 30);
    parse::duration(text, Duration::ZERO, most).map_err(|reason| format!("{text} {reason}"))
}
