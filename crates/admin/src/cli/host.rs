//! `svc-ingest host`: the machines that agents run on.

mod change;

use std::{iter, process::ExitCode};

use clap::Subcommand;
use svc_common::text::visible;
use svc_store::{
    AgentBooks, GapRecord, HostDetail, HostId, HostRecord, HostSearch, HostsPage, Page, Retired,
    Store, StoreError, WrittenSearch,
};

use super::{
    Usage,
    actor::Attribution,
    database::open,
    labels,
    output::{self, Column, Fit, Output, facts, or_dash, short},
    resource::{self, Ended, HostArgs, Resource},
    terminal,
    time::{in_full, lasting, when},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the hosts that are in service
    List(ListArgs),
    /// Show one host, its identifiers and its agents
    Show {
        /// Its id, a prefix of it (4 characters or more), or its name
        host: String,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Take a host out of service: its agents end, and if the machine comes back it is a new host
    Retire(RetireArgs),
    /// Set and remove labels of a host
    Label(change::LabelArgs),
    /// Retire hosts that have been offline for long
    Expire(change::ExpireArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Only hosts that the console's search finds: parts of the name, or conditions such as label:env=prod, is:offline and offline:1d
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Retired hosts, too
    #[arg(long)]
    retired: bool,
    #[command(flatten)]
    list: resource::PageArgs,
}

#[derive(Debug, clap::Args)]
pub struct RetireArgs {
    /// Its id, a prefix of it (4 characters or more), or its name
    host: String,
    /// Do not ask for a confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    attribution: Attribution,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

const GAP_COLUMNS: &[Column<GapRecord>] = &[
    ("AGENT", Fit::Whole, |gap| short(gap.agent_id)),
    ("NUMBERS", Fit::Whole, numbers),
    ("KIND", Fit::Whole, |gap| gap.kind.to_string()),
    ("REASON", Fit::Wraps, |gap| or_dash(gap.reason.clone())),
    ("RECORDED", Fit::Wraps, |gap| when(Some(gap.recorded_at))),
];

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args).await,
        Command::Show { host, output } => resource::show::<HostRecord>(&host, output).await,
        Command::Retire(args) => retire(&args).await,
        Command::Label(args) => change::label(args).await,
        Command::Expire(args) => change::expire(args).await,
    }
}

async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let search = search(args.search.as_deref(), args.host, args.retired)?;
    let empty = match search == HostSearch::default() {
        true => "no host is in service: hosts appear when agents register",
        false => "no host matches",
    };
    let page = HostsPage {
        search,
        ..HostsPage::default()
    };
    resource::list(&args.list, empty, async |store, limit| {
        let found = store.console_hosts(&page, limit).await;
        found.map(|found| Page {
            truncated: found.next.is_some(),
            rows: found.rows,
        })
    })
    .await
}

/// The console's search, and what the other options add to it.
fn search(words: Option<&str>, host: HostArgs, retired: bool) -> Result<HostSearch, Usage> {
    let written = WrittenSearch::parse(words.unwrap_or_default());
    if !written.unknown.is_empty() {
        let words = written.unknown.join(" ");
        return Err(Usage(format!("--search does not understand: {words}")));
    }
    let mut search = written.search;
    let labels = iter::once(search.labels).chain(host.label);
    search.labels = labels::joined(labels.collect())?;
    search.hostname = host.hostname;
    if retired {
        search.retired = Retired::Too;
    }
    Ok(search)
}

impl Resource for HostRecord {
    const NOUN: &'static str = "host";
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", Fit::Whole, |host| short(host.id)),
        ("HOST", Fit::Wraps, |host| host.hostname.clone()),
        ("PRESENCE", Fit::Wraps, presence),
        ("SYSTEM", Fit::Wraps, |host| {
            joined(&[&host.os, &host.os_version])
        }),
        ("CPU", Fit::Whole, cpu),
        ("MEMORY", Fit::Whole, memory),
        ("AGENTS", Fit::Wraps, agents),
        ("LABELS", Fit::Wraps, |host| {
            or_dash(host.labels.to_string())
        }),
    ];
    type Id = HostId;
    type Detail = HostDetail;

    fn id(&self) -> HostId {
        self.id
    }

    fn hint(&self) -> String {
        let retired = self.retired_at.map_or("", |_| ", retired");
        format!("{}{retired}", self.hostname)
    }

    async fn find(store: &Store, name: &str, limit: u32) -> anyhow::Result<Page<Self>> {
        Ok(store.hosts_find(name, limit).await?)
    }

    async fn load(store: &Store, id: HostId) -> Result<Option<HostDetail>, StoreError> {
        store.host_show(id).await
    }

    fn describe(detail: &HostDetail) -> String {
        let mut parts = vec![facts(&detail_rows(detail))];
        if !detail.agents.is_empty() {
            parts.push(resource::table(&detail.agents));
        }
        let gaps = detail.books.iter().flat_map(|books| &books.missing);
        let gaps: Vec<GapRecord> = gaps.cloned().collect();
        if !gaps.is_empty() {
            parts.push(output::table(GAP_COLUMNS, &gaps));
        }
        parts.join("\n\n")
    }
}

/// The words that are known, or a dash.
fn joined(words: &[&str]) -> String {
    or_dash(words.join(" ").trim().to_owned())
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

fn detail_rows(detail: &HostDetail) -> Vec<(&str, String)> {
    let host = &detail.host;
    let vitals_at = host.vitals_at.map(in_full);
    let mut rows = vec![
        ("id", host.id.to_string()),
        ("host", host.hostname.clone()),
        ("presence", presence(host)),
        ("system", joined(&[&host.os, &host.os_version, &host.arch])),
        ("kernel", or_dash(host.kernel_version.clone())),
        ("cpus", cpu(host)),
        ("memory", memory(host)),
        ("fullest disk", fullest_disk(host)),
        ("vitals of", or_dash(vitals_at)),
        ("addresses", or_dash(host.ip_addresses.join(", "))),
        ("labels", or_dash(host.labels.to_string())),
        ("first seen", in_full(host.created_at)),
        ("facts of", in_full(host.facts_at)),
    ];
    let problem = host.spool_problem.as_ref();
    rows.extend(problem.map(|problem| ("agent's disk", problem.clone())));
    rows.extend(unreadable_mounts(host).map(|mounts| ("unreadable", mounts)));
    let identifiers = detail.identifiers.iter();
    rows.extend(identifiers.map(|known| (known.kind.as_str(), known.value.clone())));
    rows.extend(detail.books.iter().map(|books| ("books", balance(books))));
    rows
}

fn fullest_disk(host: &HostRecord) -> String {
    match (host.fullest_disk_percent, &host.fullest_disk_mount_point) {
        (Some(percent), Some(mount_point)) => format!("{mount_point}, {percent} %"),
        _ => "-".into(),
    }
}

/// The mount points of file systems that did not say how full they are.
fn unreadable_mounts(host: &HostRecord) -> Option<String> {
    let mounts = host.unreadable_mounts.as_ref()?;
    Some(mounts.0.join(", "))
}

/// The agent's books: every sequence number that it has sent is stored, rejected, a gap, or in another cell.
fn balance(books: &AgentBooks) -> String {
    let verdict = match books.balanced {
        true => "",
        false => " — NOT what the tables hold: see docs/data-model.md",
    };
    let agent = short(books.agent_id);
    let missing = format!("{} rejected + {} gaps", books.rejected, books.gaps);
    let missing = match books.moved {
        0 => missing,
        moved => format!("{missing} + {moved} in other cells"),
    };
    let (sent, stored) = (books.sent, books.stored);
    format!("{agent}: {sent} sent = {stored} stored + {missing}{verdict}")
}

fn numbers(gap: &GapRecord) -> String {
    match gap.last_seq - gap.first_seq {
        0 => gap.first_seq.to_string(),
        _ => format!("{}–{}", gap.first_seq, gap.last_seq),
    }
}

async fn retire(args: &RetireArgs) -> anyhow::Result<ExitCode> {
    terminal::require_answer(args.yes)?;
    let store = open().await?;
    let id = resource::select::<HostRecord>(&store, &args.host).await?.id;
    if !args.yes {
        let detail = resource::load::<HostRecord>(&store, id).await?;
        eprintln!("{}\n", HostRecord::describe(&detail));
    }
    if !terminal::confirm(args.yes, "Retire this host and end its agents?")? {
        return Ok(ExitCode::FAILURE);
    }
    let (actor, reason) = (&args.attribution.by.actor, &args.attribution.reason);
    let agents_ended = store.host_retire(id, actor, reason.as_deref()).await?;
    let host = &resource::load::<HostRecord>(&store, id).await?.host;
    let retired = Ended {
        record: host,
        agents_ended,
    };
    args.output.print(&retired, || {
        let hostname = visible(&host.hostname);
        format!("retired host {id} ({hostname}), and ended {agents_ended} of its agents")
    })?;
    Ok(ExitCode::SUCCESS)
}
