//! `svc-ingest trust`: the certificates with which agents verify the service, and who would be locked out by another one.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, ensure};
use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use svc_common::{
    text::visible,
    tls::{CertificateFacts, certificates},
};
use svc_store::{AnchorRecord, DistrustingAgent, NewAnchor, Store};

use super::{
    actor::Actor,
    database::open,
    output::{self, Column, Fit, Output, facts, or_dash, short},
    time::in_full,
};

/// The agents that are named without `--all`, and with it.
const NAMED: u32 = 20;
const ALL: u32 = 1_000_000;
/// How much of a hash selects an anchor.
const SHORTEST: usize = 8;
/// What the columns of the database and the agents take.
const LARGEST: usize = 8 * 1024;
const LONGEST_SUBJECT: usize = 255;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let agents trust further certificates: an authority's, or the service's own
    Add {
        /// One certificate or several, PEM
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show each certificate, how many agents trust it, and which ones a switch to it would lock out
    Status {
        /// Name all agents, not the first 20
        #[arg(long)]
        all: bool,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Let agents drop a certificate. Refused while agents trust no other listed one
    Retire {
        /// Its SHA-256, or the first 8 characters or more of it
        hash: String,
        /// Also if agents trust no other listed one. They keep it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        by: Actor,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    anchor: AnchorRecord,
    /// Agents that a switch to it would lock out.
    agents: Vec<DistrustingAgent>,
}

const AGENTS: &[Column<DistrustingAgent>] = &[
    ("HOST", Fit::Wraps, |agent| agent.hostname.clone()),
    ("AGENT", Fit::Whole, |agent| short(agent.agent_id)),
    ("PRESENCE", Fit::Whole, |agent| {
        if agent.online { "online" } else { "offline" }.into()
    }),
    ("PROBLEM", Fit::Wraps, |agent| {
        or_dash(agent.problem.clone())
    }),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add { file, by, output } => add(file, &by.actor, output).await,
        Command::Status { all, output } => status(all, output).await,
        Command::Retire {
            hash,
            force,
            by,
            output,
        } => retire(&hash, force, &by.actor, output).await,
    }
}

async fn add(file: PathBuf, actor: &str, output: Output) -> anyhow::Result<ExitCode> {
    let found = certificates(&file)?;
    let shown = file.display();
    ensure!(!found.is_empty(), "{shown} has no certificate in PEM form");
    let mut anchors = Vec::new();
    for der in &found {
        let facts = CertificateFacts::of(der).filter(|_| der.len() <= LARGEST);
        anchors.push((
            der,
            facts.with_context(|| {
                format!("{shown}: not a certificate, or larger than {LARGEST} bytes")
            })?,
        ));
    }
    let store = open().await?;
    let mut subjects = Vec::new();
    for (der, mut facts) in anchors {
        let mut subject = visible(&facts.subject).into_owned();
        subject.truncate(subject.floor_char_boundary(LONGEST_SUBJECT));
        facts.subject = subject;
        let anchor = NewAnchor {
            certificate: der,
            subject: &facts.subject,
            not_after: facts.not_after,
        };
        store.trust_add(&anchor, actor).await?;
        for warning in warnings(&facts) {
            eprintln!("warning: {}: {warning}", facts.subject);
        }
        subjects.push(facts.subject);
    }
    output.print(&json!({ "subjects": subjects }), || {
        format!(
            "{}: agents take it within seconds; `svc-ingest trust status` shows which do not",
            subjects.join("; ")
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn warnings(facts: &CertificateFacts) -> Vec<String> {
    let mut warnings = Vec::new();
    if facts.expired(Timestamp::now()) {
        warnings.push(format!(
            "it ended on {}: agents trust nothing that it signs",
            facts.not_after
        ));
    }
    if !facts.is_authority && !facts.is_self_signed {
        warnings.push(
            "it is no authority: agents trust only a service that has this very certificate".into(),
        );
    }
    warnings
}

async fn status(all: bool, output: Output) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let limit = if all { ALL } else { NAMED };
    let mut list = Vec::new();
    for anchor in store.trust_anchors().await? {
        let agents = match anchor.retired_at {
            Some(_) => Vec::new(),
            None => store.trust_locked_out(&anchor.hash, limit).await?.rows,
        };
        list.push(Shown { anchor, agents });
    }
    output.print(&list, || match list.is_empty() {
        true => "no trust anchor yet: agents have those of their own configuration. `svc-ingest trust add FILE` adds one".into(),
        false => list.iter().map(describe).collect::<Vec<_>>().join("\n\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn describe(shown: &Shown) -> String {
    let anchor = &shown.anchor;
    let mut rows = vec![
        ("hash", anchor.hash.clone()),
        ("subject", anchor.subject.clone()),
        ("until", in_full(anchor.not_after)),
        (
            "added",
            format!("{} by {}", in_full(anchor.added_at), anchor.added_by),
        ),
    ];
    if let (Some(at), Some(by)) = (anchor.retired_at, &anchor.retired_by) {
        rows.push(("retired", format!("{} by {by}", in_full(at))));
    }
    rows.push((
        "confirmed",
        format!(
            "by {} agents; of {} it is unknown",
            anchor.confirmed, anchor.unknown
        ),
    ));
    let mut text = facts(&rows);
    if anchor.retired_at.is_none() {
        let count = anchor.locked_out;
        text += &format!("\nagents that would be locked out by switching to it now: {count}");
    }
    if !shown.agents.is_empty() {
        text += &format!("\n{}", output::table(AGENTS, &shown.agents));
    }
    text
}

async fn retire(hash: &str, force: bool, actor: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let anchor = select(&store, hash).await?;
    store.trust_retire(&anchor.hash, force, actor).await?;
    output.print(&json!({ "hash": anchor.hash }), || {
        format!(
            "{}: retired. Agents drop it when another anchor verifies the service",
            anchor.subject
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn select(store: &Store, hash: &str) -> anyhow::Result<AnchorRecord> {
    let anchors = store.trust_anchors().await?.into_iter();
    let fits = |anchor: &AnchorRecord| anchor.retired_at.is_none() && anchor.hash.starts_with(hash);
    let mut found: Vec<_> = anchors.filter(fits).collect();
    ensure!(
        hash.len() >= SHORTEST && found.len() == 1,
        "{hash} selects {} anchors: `svc-ingest trust status` shows their hashes",
        found.len()
    );
    found.pop().context("no anchor")
}
