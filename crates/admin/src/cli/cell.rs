//! `svc-ingest cell`: names other cells, and moves agents between this one and them.
//!
//! Nothing connects two databases: a person runs `export` here and `import` there, so that no cell admits agents of another one
//! without somebody who may write to both.

mod arrivals;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::{ArgGroup, Subcommand};
use serde_json::json;
use svc_store::{AgentMove, AgentRecord, CellRecord, Labels, MoveFilter, Presence, Store};

use super::{
    Usage,
    actor::Actor,
    database::open,
    labels,
    output::{self, Column, Fit, Output, OutputArgs, or_dash},
    resource,
    time::lasting,
};

const SHOWN: u32 = 1000;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add a cell, or change where it is; agents that have moved keep what they were told
    Add(AddArgs),
    /// List the cells to which agents can be moved
    List(OutputArgs),
    /// Remove a cell to which no agent was moved or is told to move
    Remove {
        name: String,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Write active agents into a file, for `cell import` in another cell. It holds no secret
    Export {
        #[command(flatten)]
        who: Who,
        /// The file; it must not exist
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Expect the agents of another cell's export: their keys are admitted, and their numbers continue
    Import {
        file: PathBuf,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Tell agents to move to a cell, which has imported them, or with --back to stay here
    #[command(group = ArgGroup::new("where").required(true).args(["to", "back"]))]
    Move {
        #[command(flatten)]
        who: Who,
        /// The cell
        #[arg(long, value_name = "NAME")]
        to: Option<String>,
        /// Take it back for agents that have not moved yet
        #[arg(long)]
        back: bool,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show which agents are told to move, which have moved, and why others have not
    Status(OutputArgs),
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// Small letters, digits and hyphens
    name: String,
    /// Where it serves agents, host:port; several may be given
    #[arg(long, value_name = "HOST:PORT", required = true)]
    address: Vec<String>,
    /// The certificates that verify it, PEM [default: those that agents trust already]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Whom a move reaches is never left to a default.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("who").required(true).args(["agent", "selector", "all"]))]
pub struct Who {
    /// An agent: its id, a prefix of it, the beginning of its key, or its host's name
    agent: Option<String>,
    /// Agents of hosts with this label, key=value; several labels must all match
    #[arg(long, value_name = "KEY=VALUE")]
    selector: Vec<Labels>,
    /// All agents
    #[arg(long)]
    all: bool,
    /// Only this share of them, in percent. A larger share has all agents of a smaller one
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,
}

const CELLS: &[Column<CellRecord>] = &[
    ("NAME", Fit::Whole, |cell| cell.name.clone()),
    ("ADDRESSES", Fit::Wraps, |cell| cell.addresses.join(", ")),
    ("CERTIFICATES", Fit::Whole, |cell| {
        cell.certificates.len().to_string()
    }),
    ("ADDED", Fit::Whole, |cell| lasting(Some(cell.added_at))),
    ("BY", Fit::Wraps, |cell| cell.added_by.clone()),
];

const MOVES: &[Column<AgentMove>] = &[
    ("HOST", Fit::Wraps, |moving| moving.hostname.clone()),
    ("AGENT", Fit::Whole, |moving| moving.agent_id.to_string()),
    ("CELL", Fit::Whole, |moving| moving.cell.clone()),
    ("STATE", Fit::Whole, |moving| state(moving).into()),
    ("SINCE", Fit::Whole, |moving| {
        lasting(Some(moving.moved_at.unwrap_or(moving.asked_at)))
    }),
    ("PROBLEM", Fit::Wraps, |moving| {
        or_dash(moving.problem.clone())
    }),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add(args) => add(args).await,
        Command::List(args) => {
            let cells = open().await?.cells_list().await?;
            args.output.print(&cells, || match cells.is_empty() {
                true => "no other cell: `svc-ingest cell add` names one".into(),
                false => output::table(CELLS, &cells),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Remove { name, output } => {
            if !open().await?.cell_remove(&name).await? {
                bail!("there is no cell {name}, or agents have moved or are told to move there");
            }
            done(output, &json!({ "removed": name }), "removed")
        }
        Command::Export { who, out } => arrivals::export(&who, &out).await,
        Command::Import { file, by, output } => arrivals::import(&file, &by.actor, output).await,
        Command::Move {
            who,
            to,
            back: _,
            by,
            output,
        } => tell(&who, to, &by.actor, output).await,
        Command::Status(args) => status(args.output).await,
    }
}

async fn add(args: AddArgs) -> anyhow::Result<ExitCode> {
    let read = |file: &PathBuf| svc_common::tls::certificates(file);
    let certificates = args.ca.as_ref().map(read).transpose()?;
    if certificates.as_ref().is_some_and(Vec::is_empty) {
        return Err(Usage("the file of --ca has no certificate in PEM form".into()).into());
    }
    let der = |found: &_| AsRef::<[u8]>::as_ref(found).to_vec();
    let certificates: Vec<Vec<u8>> = certificates.iter().flatten().map(der).collect();
    let store = open().await?;
    store
        .cell_put(&args.name, &args.address, &certificates, &args.by.actor)
        .await
        .context("the name has at most 63 small letters, digits and hyphens; there are at most 16 addresses and certificates")?;
    let text = format!("cell {} is known", args.name);
    done(args.output, &json!({ "name": args.name }), &text)
}

async fn tell(
    who: &Who,
    to: Option<String>,
    actor: &str,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let filter = who.filter(&store).await?;
    let Some(to) = to else {
        let stopped = store.moves_stop(&filter, actor).await?;
        let text = format!("{stopped} agents are no longer told to move");
        return done(output, &json!({ "stopped": stopped }), &text);
    };
    let (told, unable) = store.moves_begin(&to, &filter, actor).await?;
    let mut text =
        format!("{told} more agents are told to move to {to}: `svc-ingest cell status` shows them");
    if unable > 0 {
        text += &format!("\n{unable} agents do not know how to move, and stay");
    }
    done(output, &json!({ "told": told, "unable": unable }), &text)
}

async fn status(output: Output) -> anyhow::Result<ExitCode> {
    let page = open().await?.moves_list(SHOWN).await?;
    output.print(&page.rows, || match (page.rows.len(), page.truncated) {
        (0, _) => "no agent is told to move, and none has moved".into(),
        (_, false) => output::table(MOVES, &page.rows),
        (shown, true) => {
            let table = output::table(MOVES, &page.rows);
            format!("{table}\n\nonly the first {shown} are shown")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state(moving: &AgentMove) -> &'static str {
    match (moving.moved_at, moving.presence) {
        (Some(_), _) => "moved",
        (None, _) if !moving.problem.is_empty() => "stays",
        (None, Presence::Online) => "told",
        (None, _) => "not here",
    }
}

impl Who {
    async fn filter(&self, store: &Store) -> anyhow::Result<MoveFilter> {
        let labels = labels::joined(self.selector.clone())?;
        if self.agent.is_none() && !self.all && labels.is_empty() {
            return Err(Usage("--selector needs a label; --all means every agent".into()).into());
        }
        let agent = match &self.agent {
            Some(name) => Some(resource::select::<AgentRecord>(store, name).await?.id),
            None => None,
        };
        Ok(MoveFilter {
            labels,
            agent,
            share: self.share,
        })
    }
}

fn done(output: Output, value: &serde_json::Value, text: &str) -> anyhow::Result<ExitCode> {
    output.print(value, || text.to_owned())?;
    Ok(ExitCode::SUCCESS)
}
