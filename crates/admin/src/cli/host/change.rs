//! `svc-ingest host label` and `host expire`: changes of hosts that are not decisions about one agent.

use std::{process::ExitCode, time::Duration};

use serde_json::json;
use svc_common::{settings::parse, text::visible};
use svc_store::{HostRecord, LabelChange, Labels};

use super::super::{
    Usage, actor::Actor, database::open, labels, output::Output, resource, terminal,
};

/// How many hosts are named before they are retired.
const SHOWN: i64 = 10;

#[derive(Debug, clap::Args)]
pub struct LabelArgs {
    /// Its id, a prefix of it (4 characters or more), or its name
    host: String,
    /// Labels to set, key=value
    #[arg(value_name = "KEY=VALUE")]
    labels: Vec<Labels>,
    /// Keys to remove
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    remove: Vec<String>,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct ExpireArgs {
    /// How long a host must have been offline, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = offline_for)]
    offline_for: Duration,
    /// Say which hosts these are, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do not ask for a confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) async fn label(args: LabelArgs) -> anyhow::Result<ExitCode> {
    let change = LabelChange {
        added: labels::joined(args.labels)?,
        removed: args.remove,
    };
    if change == LabelChange::default() {
        return Err(Usage("name at least one label to set or to remove".into()).into());
    }
    let store = open().await?;
    let id = resource::select::<HostRecord>(&store, &args.host).await?.id;
    store
        .console_hosts_label(&[id.0], &change, &args.by.actor)
        .await?;
    let host = resource::load::<HostRecord>(&store, id).await?.host;
    args.output.print(&host, || {
        format!("host {id} has the labels {}", host.labels)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn expire(args: ExpireArgs) -> anyhow::Result<ExitCode> {
    if !args.dry_run {
        terminal::require_answer(args.yes)?;
    }
    let store = open().await?;
    if !args.yes {
        let (count, first) = store.hosts_expirable(args.offline_for, SHOWN).await?;
        let named = named(count, &first);
        if args.dry_run || count == 0 {
            let found = json!({ "would_retire": count, "first": first });
            args.output.print(&found, || named)?;
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("{named}");
        let question = "Retire hosts that have been offline for so long, and end their agents?";
        if !terminal::confirm(args.yes, question)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    let retired = store.hosts_expire(args.offline_for, &args.by.actor).await?;
    args.output.print(&json!({ "retired": retired }), || {
        format!("retired {retired} hosts")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `3 hosts have been offline for so long: a, b, c`, the longest first.
fn named(count: i64, first: &[String]) -> String {
    let names: Vec<_> = first.iter().map(|name| visible(name)).collect();
    let names = names.join(", ");
    let more = count - i64::try_from(first.len()).unwrap_or(0);
    match (count, more) {
        (0, _) => "no host has been offline for so long".into(),
        (1, _) => format!("1 host has been offline for so long: {names}"),
        (_, 0) => format!("{count} hosts have been offline for so long: {names}"),
        _ => format!("{count} hosts have been offline for so long: {names}, and {more} more"),
    }
}

fn offline_for(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_hours(1), Duration::from_hours(24 * 3660));
    parse::duration(text, least, most).map_err(|reason| format!("{text} {reason}"))
}
