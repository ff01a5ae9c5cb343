//! `svc-ingest agent`: lists agents, shows one, and decides about them.

mod decide;
mod keys;

use std::process::ExitCode;

use clap::{Subcommand, builder::PossibleValuesParser, builder::TypedValueParser};
use svc_store::{
    AgentDetail, AgentFilter, AgentId, AgentRecord, AgentStatus, EventRecord, IdentifierKind, Page,
    PendingReason, Store, StoreError,
};

use super::{
    labels,
    output::{self, Column, Fit, Output, facts, or_dash, short},
    resource::{self, HostArgs, Resource},
    time::{in_full, lasting, when},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List agents, pending ones first
    List(ListArgs),
    /// Show everything about one agent, with the decisions about it
    Show {
        /// Its id, a prefix of its id (4 characters or more) or of its key (8 or more), or its host's name
        agent: String,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Approve pending agents
    Approve(decide::ApproveArgs),
    /// Reject pending agents
    Reject(decide::RejectArgs),
    /// Revoke active agents: their streams close at once
    Revoke(decide::NamedArgs),
    /// Make rejected or revoked agents pending again
    Reopen(decide::NamedArgs),
    /// Ask agents for new keys; each old key is retired when the new one is first used
    ChangeKey(keys::ChangeKeyArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only agents with this status
    #[arg(long, value_parser = status_parser())]
    status: Option<AgentStatus>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    list: resource::PageArgs,
}

const EVENT_COLUMNS: &[Column<EventRecord>] = &[
    ("WHEN", Fit::Whole, |event| when(Some(event.at))),
    ("CHANGE", Fit::Whole, change),
    ("FROM", Fit::Whole, |event| {
        or_dash(event.address.map(|address| address.to_string()))
    }),
    ("BY", Fit::Wraps, |event| or_dash(event.actor.clone())),
    ("DATABASE USER", Fit::Wraps, |event| event.db_user.clone()),
    ("REASON", Fit::Wraps, |event| or_dash(event.reason.clone())),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show { agent, output } => resource::show::<AgentRecord>(&agent, output).await,
        Command::Approve(args) => decide::approve(args).await,
        Command::Reject(args) => decide::reject(args).await,
        Command::Revoke(args) => decide::revoke(args).await,
        Command::Reopen(args) => decide::reopen(args).await,
        Command::ChangeKey(args) => keys::change(args).await,
    }
}

fn status_parser() -> impl TypedValueParser<Value = AgentStatus> {
    PossibleValuesParser::new(AgentStatus::ALL.map(AgentStatus::as_str))
        .try_map(|text| AgentStatus::parse(&text).ok_or("not a status"))
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let filter = AgentFilter {
        status: args.status,
        labels: labels::joined(args.host.label)?,
        hostname: args.host.hostname,
        ..AgentFilter::default()
    };
    resource::list(&args.list, empty(&filter), async |store, limit| {
        store.agents_list(&filter, limit).await
    })
    .await
}

fn empty(filter: &AgentFilter) -> &'static str {
    match filter.status {
        None if filter.hostname.is_none() && filter.labels.is_empty() => {
            "no agent has registered yet: `svc-ingest token create` makes a token that admits one"
        }
        Some(AgentStatus::Pending) => "no agent waits for a decision",
        _ => "no agent matches",
    }
}

impl Resource for AgentRecord {
    const NOUN: &'static str = "agent";
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", Fit::Whole, |agent| short(agent.id)),
        ("HOST", Fit::Wraps, |agent| agent.hostname.clone()),
        ("STATUS", Fit::Whole, |agent| agent.status.as_str().into()),
        ("PRESENCE", Fit::Wraps, presence),
        ("KEY", Fit::Whole, |agent| fingerprint(&agent.key)),
        ("JOINED", Fit::Whole, |agent| when(Some(agent.created_at))),
        ("NOTE", Fit::Wraps, |agent| or_dash(note(agent))),
    ];
    type Id = AgentId;
    type Detail = AgentDetail;

    fn id(&self) -> AgentId {
        self.id
    }

    fn hint(&self) -> String {
        format!("{}, {}", self.hostname, self.status.as_str())
    }

    fn is_exactly(&self, name: &str) -> bool {
        name == self.id.to_string() || name == self.key
    }

    async fn find(store: &Store, name: &str, limit: u32) -> anyhow::Result<Page<Self>> {
        Ok(store.agents_find(name, limit).await?)
    }

    async fn load(store: &Store, id: AgentId) -> Result<Option<AgentDetail>, StoreError> {
        store.agent_show(id).await
    }

    fn describe(detail: &AgentDetail) -> String {
        let agent = &detail.agent;
        let since = in_full(agent.presence_since);
        let mut rows = vec![
            ("id", agent.id.to_string()),
            ("key", agent.key.clone()),
            ("status", agent.status.as_str().into()),
            ("presence", format!("{} since {since}", agent.presence)),
            ("host", format!("{} ({})", agent.hostname, agent.host_id)),
            ("host labels", or_dash(agent.labels.to_string())),
            ("version", or_dash(agent.version.clone())),
            ("registered", in_full(agent.created_at)),
            ("token", or_dash(agent.token_id.map(|id| id.to_string()))),
        ];
        rows.extend(keys::rows(detail));
        rows.extend(update(detail));
        rows.extend(cell(detail));
        rows.extend(machine_change(detail));
        rows.extend(pending_facts(agent));
        rows.extend(identifiers(detail).map(|(kind, values)| (kind, values.join(", "))));
        let events = output::table(EVENT_COLUMNS, &detail.events);
        format!("{}\n\n{events}", facts(&rows))
    }
}

fn update(detail: &AgentDetail) -> Option<(&'static str, String)> {
    let update = detail.update.as_ref()?;
    let since = in_full(update.since);
    let text = format!(
        "{} since {since}: {}",
        update.step,
        or_dash(update.reason.clone())
    );
    Some(("update", text))
}

fn cell(detail: &AgentDetail) -> Option<(&'static str, String)> {
    let cell = detail.cell.as_ref()?;
    let name = &cell.cell;
    let text = match cell.moved_at {
        Some(at) => format!("moved to {name} at {}", in_full(at)),
        None if cell.problem.is_empty() => format!("told to move to {name}"),
        None => format!("told to move to {name}, but stays: {}", cell.problem),
    };
    Some(("cell", text))
}

/// A person should know: it is a failover, a moved disk, or a copy that came before its original.
fn machine_change(detail: &AgentDetail) -> Option<(&'static str, String)> {
    let at = in_full(detail.machine_changed_at?);
    let what = "its key came from another machine than before";
    Some(("machine changed", format!("{at}: {what}")))
}

/// As much of a key's fingerprint as a person compares at a glance.
fn fingerprint(key: &str) -> String {
    key.chars().take(16).collect()
}

/// Only an active agent can be online.
fn presence(agent: &AgentRecord) -> String {
    match agent.status {
        AgentStatus::Active => format!(
            "{}, {}",
            agent.presence,
            lasting(Some(agent.presence_since))
        ),
        _ => "-".into(),
    }
}

/// Why it is pending, or why it was rejected or revoked.
fn note(agent: &AgentRecord) -> Option<String> {
    let named = |relation, id: Option<AgentId>| id.map(|id| format!("{relation} {}", short(id)));
    let conflict = named("conflict with", agent.conflict_with);
    let clone = named("clone of", agent.cloned_from);
    if agent.status != AgentStatus::Pending {
        return agent.decision_reason.clone().or(clone);
    }
    match agent.pending_reason {
        Some(PendingReason::Conflict | PendingReason::Clone) => {
            let reasons: Vec<String> = [clone, conflict].into_iter().flatten().collect();
            Some(reasons.join(", "))
        }
        other => other.map(|reason| reason.to_string()),
    }
}

/// What a person needs to know before deciding about a pending agent.
fn pending_facts(agent: &AgentRecord) -> impl Iterator<Item = (&'static str, String)> {
    let id = |id: Option<AgentId>| id.map(|id| id.to_string());
    let decidable = agent.status == AgentStatus::Pending && agent.conflict_with.is_some();
    let choices =
        "approve with --replace (the same machine, reinstalled) or --new-host (another machine)";
    [
        (
            "waits for",
            agent.pending_reason.map(|reason| reason.to_string()),
        ),
        ("conflicts with", id(agent.conflict_with)),
        ("", decidable.then(|| choices.into())),
        ("cloned from", id(agent.cloned_from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// The machine's identifiers, as the agent reported them.
fn identifiers(detail: &AgentDetail) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let kinds = IdentifierKind::ALL.map(IdentifierKind::as_str);
    kinds.into_iter().filter_map(|kind| {
        let values = detail.facts["identifiers"][kind].as_array()?;
        let texts = values.iter().filter_map(|value| value.as_str());
        Some((kind, texts.map(str::to_owned).collect()))
    })
}

fn change(event: &EventRecord) -> String {
    match (&event.from_status, &event.to_status) {
        (Some(from), Some(to)) => format!("{from} -> {to}"),
        (None, Some(to)) => format!("registered, {to}"),
        _ => event.kind.to_string(),
    }
}
