//! `svc-ingest host`: the machines that agents run on.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use svc_store::{AgentBooks, GapRecord, HostDetail, HostFilter, HostRecord};

use super::{
    actor::{self, Actor},
    agent,
    database::open,
    labels::{self, Label},
    output::{self, Column, Fit, Output, facts, or_dash, print, print_json},
    select::{self, short, still_there},
    terminal,
    time::{in_full, lasting, when},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the hosts that are in service
    List(ListArgs),
    /// Show one host, what it is recognised by, and its agents
    Show(ShowArgs),
    /// Take a host out of service: its agents end, and a machine that comes back is a new host
    Retire(RetireArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Those that bear this label: key=value; several must all fit
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    label: Vec<Label>,
    /// Those of this name
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Those too that were retired
    #[arg(long)]
    retired: bool,
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
    /// Its id, the beginning of it (4 characters or more), or its name
    host: String,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct RetireArgs {
    /// Its id, the beginning of it (4 characters or more), or its name
    host: String,
    /// Ask nothing
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    by: Actor,
    /// Why, for the record
    #[arg(long, value_parser = actor::name)]
    reason: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// What retirement shows a program.
#[derive(Serialize)]
struct Retired<'a> {
    #[serde(flatten)]
    host: &'a HostRecord,
    agents_ended: i32,
}

const COLUMNS: &[Column] = &[
    ("ID", Fit::Whole),
    ("HOST", Fit::Wraps),
    ("PRESENCE", Fit::Wraps),
    ("SYSTEM", Fit::Wraps),
    ("CPU", Fit::Whole),
    ("MEMORY", Fit::Whole),
    ("AGENTS", Fit::Wraps),
    ("LABELS", Fit::Wraps),
];

const GAP_COLUMNS: &[Column] = &[
    ("AGENT", Fit::Whole),
    ("NUMBERS", Fit::Whole),
    ("KIND", Fit::Whole),
    ("REASON", Fit::Wraps),
    ("RECORDED", Fit::Wraps),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args).await?,
        Command::Show(args) => show(&args).await?,
        Command::Retire(args) => return retire(&args).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs) -> anyhow::Result<()> {
    let filter = HostFilter {
        labels: labels::by_key(args.label)?,
        hostname: args.hostname,
        with_retired: args.retired,
    };
    let store = open().await?;
    let empty = if filter.labels.is_empty() && filter.hostname.is_none() {
        "no host is in service: hosts appear when agents register"
    } else {
        "no host fits"
    };
    terminal::show(args.watch, async || {
        let page = store.hosts_list(&filter, args.limit).await?;
        output::list(args.output, &page, table, empty)
    })
    .await
}

pub fn table(hosts: &[HostRecord]) -> String {
    output::table(COLUMNS, hosts.iter().map(row))
}

fn row(host: &HostRecord) -> Vec<String> {
    vec![
        short(host.id),
        host.hostname.clone(),
        presence(host),
        or_dash(format!("{} {}", host.os, host.os_version).trim().to_owned()),
        cpu(host),
        memory(host),
        agents(host),
        or_dash(labels::shown(&host.labels)),
    ]
}

fn presence(host: &HostRecord) -> String {
    match (&host.retired_at, &host.presence) {
        (Some(at), _) => format!("retired {}", when(Some(*at))),
        (None, Some(presence)) => format!("{presence}, {}", lasting(host.presence_since)),
        (None, None) => "no agent".into(),
    }
}

fn cpu(host: &HostRecord) -> String {
    match host.cpu_percent {
        Some(percent) => format!("{percent:.0} % of {}", host.cpu_count),
        None => host.cpu_count.to_string(),
    }
}

fn memory(host: &HostRecord) -> String {
    let total = gib(host.memory_total_bytes);
    match host.memory_used_bytes {
        Some(used) => format!("{:.1}/{total:.1} GiB", gib(used)),
        None => format!("{total:.1} GiB"),
    }
}

fn gib(bytes: i64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn agents(host: &HostRecord) -> String {
    match host.pending_count {
        0 => host.agent_count.to_string(),
        pending => format!("{}, {pending} pending", host.agent_count),
    }
}

async fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let store = open().await?;
    let id = select::host(&store, &args.host).await?;
    let detail = still_there(store.host_show(id).await, "host")?;
    match args.output {
        Output::Json => print_json(&detail),
        Output::Table => print(&in_detail(&detail)),
    }
}

fn in_detail(detail: &HostDetail) -> String {
    let host = &detail.host;
    let system = format!("{} {} {}", host.os, host.os_version, host.arch);
    let mut rows = vec![
        ("id", host.id.to_string()),
        ("host", host.hostname.clone()),
        ("presence", presence(host)),
        ("system", or_dash(system.trim().to_owned())),
        ("kernel", or_dash(host.kernel_version.clone())),
        ("cpus", cpu(host)),
        ("memory", memory(host)),
        ("fullest disk", fullest_disk(host)),
        (
            "vitals of",
            host.vitals_at.map_or_else(|| "-".into(), in_full),
        ),
        ("addresses", or_dash(host.ip_addresses.join(", "))),
        ("labels", or_dash(labels::shown(&host.labels))),
        ("first seen", in_full(host.created_at)),
        ("facts of", in_full(host.facts_at)),
    ];
    let identifiers = detail.identifiers.iter();
    rows.extend(identifiers.map(|known| (known.kind.as_str(), known.value.clone())));
    rows.extend(detail.books.iter().map(|books| ("books", balance(books))));
    let mut parts = vec![facts(&rows)];
    if !detail.agents.is_empty() {
        parts.push(agent::table(&detail.agents));
    }
    let gaps = |books: &AgentBooks| {
        books
            .missing
            .iter()
            .map(gap_row(short(books.agent_id)))
            .collect()
    };
    let gaps: Vec<Vec<String>> = detail.books.iter().flat_map::<Vec<_>, _>(gaps).collect();
    if !gaps.is_empty() {
        parts.push(output::table(GAP_COLUMNS, gaps));
    }
    parts.join("\n\n")
}

fn fullest_disk(host: &HostRecord) -> String {
    match (host.fullest_disk_percent, &host.fullest_disk_mount_point) {
        (Some(percent), Some(mount_point)) => format!("{mount_point}, {percent} %"),
        _ => "-".into(),
    }
}

/// Every number that an agent has sent, accounted for.
fn balance(books: &AgentBooks) -> String {
    let AgentBooks {
        sent,
        stored,
        rejected,
        gaps,
        ..
    } = books;
    let verdict = match books.balanced {
        true => "",
        false => " — NOT what the tables hold: see docs/data-model.md",
    };
    let agent = short(books.agent_id);
    format!("{agent}: {sent} sent = {stored} stored + {rejected} rejected + {gaps} gaps{verdict}")
}

fn gap_row(agent: String) -> impl Fn(&GapRecord) -> Vec<String> {
    move |gap| {
        let numbers = match gap.last_seq - gap.first_seq {
            0 => gap.first_seq.to_string(),
            _ => format!("{}–{}", gap.first_seq, gap.last_seq),
        };
        let recorded = when(Some(gap.recorded_at));
        vec![
            agent.clone(),
            numbers,
            gap.kind.clone(),
            or_dash(gap.reason.clone()),
            recorded,
        ]
    }
}

async fn retire(args: &RetireArgs) -> anyhow::Result<ExitCode> {
    terminal::require_answer(args.yes)?;
    let store = open().await?;
    let id = select::host(&store, &args.host).await?;
    if !args.yes {
        let detail = still_there(store.host_show(id).await, "host")?;
        eprintln!("{}\n", in_detail(&detail));
    }
    if !terminal::confirm(args.yes, "Retire this host and end its agents?")? {
        return Ok(ExitCode::FAILURE);
    }
    let agents_ended = store
        .host_retire(id, &args.by.actor, args.reason.as_deref())
        .await?;
    let host = &still_there(store.host_show(id).await, "host")?.host;
    match args.output {
        Output::Json => print_json(&Retired { host, agents_ended })?,
        Output::Table => print(&format!(
            "retired host {id} ({}), and ended {agents_ended} of its agents",
            output::harmless(&host.hostname)
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}
