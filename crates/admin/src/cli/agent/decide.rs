//! Decisions about agents: about those that the call names, or about all pending ones.
//!
//! Each agent is decided in a transaction of its own, and the command prints the outcome of each: one agent that
//! cannot be decided does not hold up the others.

use std::process::ExitCode;

use serde::Serialize;
use svc_common::text::visible;
use svc_store::{
    AgentFilter, AgentId, AgentRecord, AgentStatus, ApprovalMode, Decision, HostId, Labels, Store,
};

use super::fingerprint;
use crate::cli::{
    Usage,
    actor::Attribution,
    database::{explain, open},
    exit_code, labels,
    output::{Output, print, short},
    resource, terminal,
};

/// How many agents one `--all-pending` decides about.
const AT_ONCE: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct NamedArgs {
    /// Ids, prefixes of ids (4 characters or more) or of keys (8 or more), or host names
    #[arg(required = true)]
    agents: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    #[command(flatten)]
    selection: Selection,
    /// The same machine, reinstalled: its host record stays, its old agent is revoked
    #[arg(long, conflicts_with_all = ["new_host", "all_pending"])]
    replace: bool,
    /// Another machine that only looks the same: it gets a host record of its own
    #[arg(long, conflicts_with = "all_pending")]
    new_host: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
pub struct RejectArgs {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct Selection {
    /// Ids, prefixes of ids (4 characters or more) or of keys (8 or more), or host names
    #[arg(
        required_unless_present = "all_pending",
        conflicts_with = "all_pending"
    )]
    agents: Vec<String>,
    /// All pending agents, after a confirmation
    #[arg(long)]
    all_pending: bool,
    /// With --all-pending: only agents on hosts with this label, key=value
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<Labels>,
    /// Do not ask for a confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    attribution: Attribution,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The outcome for one agent.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// As the call named it.
    name: String,
    id: Option<AgentId>,
    hostname: Option<String>,
    host_id: Option<HostId>,
    key: Option<String>,
    /// After the decision.
    status: Option<AgentStatus>,
    error: Option<String>,
}

pub async fn approve(args: ApproveArgs) -> anyhow::Result<ExitCode> {
    let replace = args.replace.then_some(ApprovalMode::Replace);
    let mode = replace.or(args.new_host.then_some(ApprovalMode::NewHost));
    decide_selected(args.selection, Decision::Approve(mode), &args.common).await
}

pub async fn reject(args: RejectArgs) -> anyhow::Result<ExitCode> {
    decide_selected(args.selection, Decision::Reject, &args.common).await
}

pub async fn revoke(args: NamedArgs) -> anyhow::Result<ExitCode> {
    decide_named(args.agents, Decision::Revoke, &args.common).await
}

pub async fn reopen(args: NamedArgs) -> anyhow::Result<ExitCode> {
    decide_named(args.agents, Decision::Reopen, &args.common).await
}

async fn decide_selected(
    selection: Selection,
    decision: Decision,
    common: &CommonArgs,
) -> anyhow::Result<ExitCode> {
    match selection.all_pending {
        true => decide_pending(selection, decision, common).await,
        // clap does not enforce a `requires` that conflicts with a given argument.
        false if !selection.label.is_empty() => {
            Err(Usage("--label needs --all-pending".into()).into())
        }
        false => decide_named(selection.agents, decision, common).await,
    }
}

async fn decide_pending(
    Selection { label, yes, .. }: Selection,
    decision: Decision,
    common: &CommonArgs,
) -> anyhow::Result<ExitCode> {
    terminal::require_answer(yes)?;
    let filter = AgentFilter {
        status: Some(AgentStatus::Pending),
        labels: labels::joined(label)?,
        ..AgentFilter::default()
    };
    let store = open().await?;
    let pending = store.agents_list(&filter, AT_ONCE).await?;
    if pending.rows.is_empty() {
        return finish(&[], decision, common.output);
    }
    if pending.truncated {
        eprintln!("svc-ingest: only the first {AT_ONCE}: run it again for the others");
    }
    if !yes {
        eprintln!("{}\n", resource::table(&pending.rows));
    }
    let (imperative, _) = verb(decision);
    let question = format!("{imperative} these {}?", pending.rows.len());
    if !terminal::confirm(yes, &question)? {
        return Ok(ExitCode::FAILURE);
    }
    let mut outcomes = Vec::new();
    for agent in pending.rows {
        let name = agent.id.to_string();
        outcomes.push(decide(&store, name, agent, decision, common).await);
    }
    finish(&outcomes, decision, common.output)
}

async fn decide_named(
    names: Vec<String>,
    decision: Decision,
    common: &CommonArgs,
) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let mut outcomes = Vec::new();
    for name in names {
        outcomes.push(match resource::select::<AgentRecord>(&store, &name).await {
            Ok(agent) => decide(&store, name, agent, decision, common).await,
            Err(error) => Outcome {
                name,
                error: Some(format!("{error:#}")),
                ..Outcome::default()
            },
        });
    }
    finish(&outcomes, decision, common.output)
}

async fn decide(
    store: &Store,
    name: String,
    agent: AgentRecord,
    decision: Decision,
    CommonArgs { attribution, .. }: &CommonArgs,
) -> Outcome {
    let (actor, reason) = (&attribution.by.actor, attribution.reason.as_deref());
    match store.agent_decide(agent.id, decision, actor, reason).await {
        Ok(agent) => Outcome::new(name, agent),
        Err(error) => {
            let next = next_step(decision, agent.status);
            Outcome {
                error: Some(format!("{}{next}", explain(&error))),
                ..Outcome::new(name, agent)
            }
        }
    }
}

fn finish(outcomes: &[Outcome], decision: Decision, output: Output) -> anyhow::Result<ExitCode> {
    match output {
        Output::Table if outcomes.is_empty() => print("no agent waits for a decision")?,
        Output::Table => {
            for outcome in outcomes {
                outcome.print(decision)?;
            }
        }
        Output::Json => output.print(&outcomes, String::new)?,
    }
    Ok(exit_code(
        outcomes.iter().all(|outcome| outcome.error.is_none()),
    ))
}

impl Outcome {
    fn new(name: String, agent: AgentRecord) -> Self {
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

    /// A success goes to standard output, a failure to standard error.
    fn print(&self, decision: Decision) -> anyhow::Result<()> {
        if let Some(error) = &self.error {
            eprintln!("svc-ingest: {}", visible(error));
            return Ok(());
        }
        let id = self.id.map(short).unwrap_or_default();
        let hostname = visible(self.hostname.as_deref().unwrap_or_default());
        let key = fingerprint(self.key.as_deref().unwrap_or_default());
        let (_, done) = verb(decision);
        print(&format!("{done} {id} on {hostname} (key {key})"))
    }
}

/// The word for a decision, in a question and in a result.
fn verb(decision: Decision) -> (&'static str, &'static str) {
    match decision {
        Decision::Approve(_) => ("Approve", "approved"),
        Decision::Reject => ("Reject", "rejected"),
        Decision::Revoke => ("Revoke", "revoked"),
        Decision::Reopen => ("Reopen", "reopened"),
    }
}

/// The decision that is possible in this status instead.
fn next_step(decision: Decision, status: AgentStatus) -> &'static str {
    use AgentStatus::{Active, Pending, Rejected, Revoked};
    match (decision, status) {
        (Decision::Approve(_), Rejected | Revoked) => ": reopen it first",
        (Decision::Reject, Active) => ": revoke it instead",
        (Decision::Revoke, Pending) => ": reject it instead",
        _ => "",
    }
}
