//! Decisions about agents: one or several named, or all that wait.
//!
//! Each agent is decided by itself. What became of each is said, and one that
//! could not be decided does not keep the others waiting.

use std::process::ExitCode;

use serde::Serialize;
use svc_store::{
    AgentFilter, AgentId, AgentRecord, AgentStatus, ApprovalMode, Decision, HostId, Store,
};

use super::table;
use crate::cli::{
    Usage,
    actor::{self, Actor},
    database::{explain, open},
    labels::{self, Label},
    output::{Output, harmless, print, print_json},
    select::{self, short},
    terminal,
};

/// How many agents one call decides about, where it does not name them.
const AT_ONCE: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct DecideArgs {
    /// Ids, beginnings of ids (4 characters or more) or of keys (8 or more), or hosts' names
    #[arg(required = true)]
    agents: Vec<String>,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    whom: Whom,
    /// The same machine, reinstalled: its record stays, its old agent is revoked
    #[arg(long, conflicts_with_all = ["new_host", "all_pending"])]
    replace: bool,
    /// Another machine that only looks the same: it gets a record of its own
    #[arg(long, conflicts_with = "all_pending")]
    new_host: bool,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, clap::Args)]
pub struct RejectArgs {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, clap::Args)]
struct Whom {
    /// Ids, beginnings of ids (4 characters or more) or of keys (8 or more), or hosts' names
    #[arg(
        required_unless_present = "all_pending",
        conflicts_with = "all_pending"
    )]
    agents: Vec<String>,
    /// All agents that wait for a decision, after a confirmation
    #[arg(long)]
    all_pending: bool,
    /// With --all-pending: those on hosts that bear this label, key=value
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    label: Vec<Label>,
    /// Ask nothing
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct By {
    #[command(flatten)]
    who: Actor,
    /// Why, for the record
    #[arg(long, value_parser = actor::name)]
    reason: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// What became of one agent.
#[derive(Debug, Serialize)]
struct Outcome {
    /// As it was named in the call.
    name: String,
    id: Option<AgentId>,
    hostname: Option<String>,
    host_id: Option<HostId>,
    key: Option<String>,
    /// As it stands now.
    status: Option<AgentStatus>,
    error: Option<String>,
}

pub async fn approve(args: ApproveArgs) -> anyhow::Result<ExitCode> {
    let replace = args.replace.then_some(ApprovalMode::Replace);
    let mode = replace.or(args.new_host.then_some(ApprovalMode::NewHost));
    decide_whom(args.whom, Decision::Approve(mode), &args.by).await
}

pub async fn reject(args: RejectArgs) -> anyhow::Result<ExitCode> {
    decide_whom(args.whom, Decision::Reject, &args.by).await
}

pub async fn revoke(args: DecideArgs) -> anyhow::Result<ExitCode> {
    decide_named(args.agents, Decision::Revoke, &args.by).await
}

pub async fn reopen(args: DecideArgs) -> anyhow::Result<ExitCode> {
    decide_named(args.agents, Decision::Reopen, &args.by).await
}

async fn decide_whom(whom: Whom, decision: Decision, by: &By) -> anyhow::Result<ExitCode> {
    // clap lets a requirement go that conflicts with what is there.
    if !whom.all_pending && !whom.label.is_empty() {
        return Err(Usage("--label chooses among --all-pending".into()).into());
    }
    if !whom.all_pending {
        return decide_named(whom.agents, decision, by).await;
    }
    terminal::require_answer(whom.yes)?;
    let filter = AgentFilter {
        status: Some(AgentStatus::Pending),
        labels: labels::by_key(whom.label)?,
        ..AgentFilter::default()
    };
    let store = open().await?;
    let waiting = store.agents_list(&filter, AT_ONCE).await?;
    if waiting.rows.is_empty() {
        return finish(&[], decision, by.output);
    }
    if waiting.cut {
        eprintln!("svc-ingest: only the first {AT_ONCE}: run it again for the others");
    }
    if !whom.yes {
        eprintln!("{}\n", table(&waiting.rows));
    }
    let question = format!("{} these {}?", imperative(decision), waiting.rows.len());
    if !terminal::confirm(whom.yes, &question)? {
        return Ok(ExitCode::FAILURE);
    }
    let mut outcomes = Vec::new();
    for agent in waiting.rows {
        let name = agent.id.to_string();
        outcomes.push(decide(&store, name, agent, decision, by).await);
    }
    finish(&outcomes, decision, by.output)
}

async fn decide_named(names: Vec<String>, decision: Decision, by: &By) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let mut outcomes = Vec::new();
    for name in names {
        outcomes.push(match select::agent(&store, &name).await {
            Ok(agent) => decide(&store, name, agent, decision, by).await,
            Err(error) => Outcome::failed(name, None, format!("{error:#}")),
        });
    }
    finish(&outcomes, decision, by.output)
}

async fn decide(
    store: &Store,
    name: String,
    agent: AgentRecord,
    decision: Decision,
    by: &By,
) -> Outcome {
    let reason = by.reason.as_deref();
    let decided = store.agent_decide(agent.id, decision, &by.who.actor, reason);
    match decided.await {
        Ok(agent) => Outcome::of(name, agent),
        Err(error) => {
            let next = next_step(decision, agent.status).unwrap_or_default();
            let error = format!("{}{next}", explain(&error));
            Outcome::failed(name, Some(agent), error)
        }
    }
}

fn finish(outcomes: &[Outcome], decision: Decision, output: Output) -> anyhow::Result<ExitCode> {
    match output {
        Output::Json => print_json(&outcomes)?,
        Output::Table if outcomes.is_empty() => print("no agent waits for a decision")?,
        Output::Table => {
            for outcome in outcomes {
                outcome.print(decision)?;
            }
        }
    }
    let failed = outcomes.iter().any(|outcome| outcome.error.is_some());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

impl Outcome {
    fn of(name: String, agent: AgentRecord) -> Self {
        Self {
            name,
            id: Some(agent.id),
            hostname: Some(agent.hostname),
            host_id: Some(agent.host_id),
            key: Some(agent.key),
            status: Some(agent.status),
            error: None,
        }
    }

    fn failed(name: String, agent: Option<AgentRecord>, error: String) -> Self {
        let nobody = Self {
            name: name.clone(),
            id: None,
            hostname: None,
            host_id: None,
            key: None,
            status: None,
            error: None,
        };
        Self {
            error: Some(error),
            ..agent.map_or(nobody, |agent| Self::of(name, agent))
        }
    }

    /// A success goes to standard output, a failure to standard error.
    fn print(&self, decision: Decision) -> anyhow::Result<()> {
        if let Some(error) = &self.error {
            eprintln!("svc-ingest: {}", harmless(error));
            return Ok(());
        }
        let id = self.id.map(short).unwrap_or_default();
        let hostname = self.hostname.as_deref().unwrap_or_default();
        let key: String = self
            .key
            .iter()
            .flat_map(|key| key.chars().take(16))
            .collect();
        let done = past_tense(decision);
        print(&format!(
            "{done} {id} on {} (key {key})",
            harmless(hostname)
        ))
    }
}

fn imperative(decision: Decision) -> &'static str {
    match decision {
        Decision::Approve(_) => "Approve",
        Decision::Reject => "Reject",
        Decision::Revoke => "Revoke",
        Decision::Reopen => "Reopen",
    }
}

fn past_tense(decision: Decision) -> &'static str {
    match decision {
        Decision::Approve(_) => "approved",
        Decision::Reject => "rejected",
        Decision::Revoke => "revoked",
        Decision::Reopen => "reopened",
    }
}

/// What the person may want instead.
fn next_step(decision: Decision, status: AgentStatus) -> Option<&'static str> {
    match (decision, status) {
        (Decision::Approve(_), AgentStatus::Rejected | AgentStatus::Revoked) => {
            Some(": reopen it first")
        }
        (Decision::Reject, AgentStatus::Active) => Some(": revoke it instead"),
        (Decision::Revoke, AgentStatus::Pending) => Some(": reject it instead"),
        _ => None,
    }
}
