//! `svc-ingest agent`: lists agents, shows one, and decides about them.

mod decide;

use std::process::ExitCode;

use clap::{Subcommand, builder::PossibleValuesParser, builder::TypedValueParser};
use svc_store::{AgentDetail, AgentFilter, AgentRecord, AgentStatus, EventRecord};

use super::{
    database::open,
    labels::{self, Label},
    output::{self, Column, Fit, Output, facts, or_dash, print, print_json},
    select::{self, short, still_there},
    terminal,
    time::{in_full, lasting, when},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List agents, those who wait for a decision first
    List(ListArgs),
    /// Show everything about one agent, with what was decided
    Show(ShowArgs),
    /// Let agents in that wait
    Approve(decide::ApproveArgs),
    /// Turn agents away that wait
    Reject(decide::RejectArgs),
    /// End active agents: their streams close at once
    Revoke(decide::DecideArgs),
    /// Let rejected or revoked agents wait for a decision again
    Reopen(decide::DecideArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Those of this status alone
    #[arg(long, value_parser = status_parser())]
    status: Option<AgentStatus>,
    /// Those on hosts that bear this label: key=value; several must all fit
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    label: Vec<Label>,
    /// Those on hosts of this name
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Look again every 2 seconds, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Its id, the beginning of its id (4 characters or more) or of its key (8 or more), or its host's name
    agent: String,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

const COLUMNS: &[Column] = &[
    ("ID", Fit::Whole),
    ("HOST", Fit::Wraps),
    ("STATUS", Fit::Whole),
    ("PRESENCE", Fit::Wraps),
    ("KEY", Fit::Whole),
    ("JOINED", Fit::Whole),
    ("NOTE", Fit::Wraps),
];

const EVENT_COLUMNS: &[Column] = &[
    ("WHEN", Fit::Whole),
    ("CHANGE", Fit::Whole),
    ("BY", Fit::Wraps),
    ("DATABASE USER", Fit::Wraps),
    ("REASON", Fit::Wraps),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args).await?,
        Command::Show(args) => show(&args).await?,
        Command::Approve(args) => return decide::approve(args).await,
        Command::Reject(args) => return decide::reject(args).await,
        Command::Revoke(args) => return decide::revoke(args).await,
        Command::Reopen(args) => return decide::reopen(args).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn status_parser() -> impl TypedValueParser<Value = AgentStatus> {
    PossibleValuesParser::new(AgentStatus::ALL.map(AgentStatus::as_str))
        .try_map(|text| AgentStatus::parse(&text).ok_or("not a status"))
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let filter = AgentFilter {
        status: args.status,
        labels: labels::by_key(args.label)?,
        hostname: args.hostname,
        ..AgentFilter::default()
    };
    let store = open().await?;
    terminal::show(args.watch, async || {
        let page = store.agents_list(&filter, args.limit).await?;
        output::list(args.output, &page, table, empty(&filter))
    })
    .await
}

fn empty(filter: &AgentFilter) -> &'static str {
    match filter {
        AgentFilter {
            status: None,
            hostname: None,
            labels,
            ..
        } if labels.is_empty() => {
            "no agent has registered yet: `svc-ingest token create` makes the token that admits one"
        }
        AgentFilter {
            status: Some(AgentStatus::Pending),
            ..
        } => "no agent waits for a decision",
        _ => "no agent fits",
    }
}

pub fn table(agents: &[AgentRecord]) -> String {
    output::table(COLUMNS, agents.iter().map(row))
}

fn row(agent: &AgentRecord) -> Vec<String> {
    vec![
        short(agent.id),
        agent.hostname.clone(),
        agent.status.as_str().into(),
        presence(agent),
        fingerprint(agent),
        when(Some(agent.created_at)),
        or_dash(note(agent)),
    ]
}

/// As much of the key's fingerprint as a person compares at a glance.
fn fingerprint(agent: &AgentRecord) -> String {
    agent.key.chars().take(16).collect()
}

/// Presence is of interest while an agent may be there at all.
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

/// Why it waits, or why it was turned away.
fn note(agent: &AgentRecord) -> Option<String> {
    let conflict = agent
        .conflict_with
        .map(|id| format!("conflict with {}", short(id)));
    let clone = agent
        .cloned_from
        .map(|id| format!("clone of {}", short(id)));
    if agent.status != AgentStatus::Pending {
        return agent.decision_reason.clone().or(clone);
    }
    match agent.pending_reason.as_deref() {
        Some("conflict" | "clone") => {
            let told: Vec<String> = [clone, conflict].into_iter().flatten().collect();
            Some(told.join(", "))
        }
        other => other.map(str::to_owned),
    }
}

async fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let store = open().await?;
    let id = select::agent(&store, &args.agent).await?.id;
    let detail = still_there(store.agent_show(id).await, "agent")?;
    match args.output {
        Output::Json => print_json(&detail),
        Output::Table => print(&in_detail(&detail)),
    }
}

fn in_detail(detail: &AgentDetail) -> String {
    let agent = &detail.agent;
    let mut rows = vec![
        ("id", agent.id.to_string()),
        ("key", agent.key.clone()),
        ("status", agent.status.as_str().into()),
        (
            "presence",
            format!("{} since {}", agent.presence, in_full(agent.presence_since)),
        ),
        ("host", format!("{} ({})", agent.hostname, agent.host_id)),
        ("host labels", or_dash(labels::shown(&agent.labels))),
        ("version", or_dash(agent.version.clone())),
        ("registered", in_full(agent.created_at)),
        ("token", or_dash(agent.token_id.map(|id| id.to_string()))),
    ];
    rows.extend(waiting(agent));
    rows.extend(identifiers(detail).map(|(kind, values)| (kind, values.join(", "))));
    let events = output::table(EVENT_COLUMNS, detail.events.iter().map(event_row));
    format!("{}\n\n{events}", facts(&rows))
}

/// What a person needs to know before deciding.
fn waiting(agent: &AgentRecord) -> impl Iterator<Item = (&'static str, String)> {
    let id = |id: Option<svc_store::AgentId>| id.map(|id| id.to_string());
    let conflict = id(agent.conflict_with);
    let way_out = conflict
        .as_ref()
        .filter(|_| agent.status == AgentStatus::Pending)
        .map(|_| {
            "approve with --replace (the same machine, reinstalled) or --new-host (another machine)"
                .into()
        });
    [
        ("waits for", agent.pending_reason.clone()),
        ("conflicts with", conflict),
        ("", way_out),
        ("cloned from", id(agent.cloned_from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// What the machine is recognised by, as the agent says.
fn identifiers(detail: &AgentDetail) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let kinds = ["cloud", "hardware", "machine", "network"];
    kinds.into_iter().filter_map(|kind| {
        let values = detail.facts["identifiers"][kind].as_array()?;
        let texts = values.iter().filter_map(|value| value.as_str());
        Some((kind, texts.map(str::to_owned).collect()))
    })
}

fn event_row(event: &EventRecord) -> Vec<String> {
    let change = match (&event.from_status, &event.to_status) {
        (Some(from), Some(to)) => format!("{from} -> {to}"),
        (None, Some(to)) => format!("registered, {to}"),
        _ => event.kind.clone(),
    };
    vec![
        when(Some(event.at)),
        change,
        or_dash(event.actor.clone()),
        event.db_user.clone(),
        or_dash(event.reason.clone()),
    ]
}
