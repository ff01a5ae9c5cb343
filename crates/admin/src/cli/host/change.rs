//! `svc-ingest host label` and `host expire`: changes of hosts that are not decisions about one agent.

use std::{process::ExitCode, time::Duration};

use serde_json::json;
use svc_common::settings::parse;
use svc_store::{HostRecord, LabelChange, Labels};

use super::super::{
    Usage, actor::Actor, database::open, labels, output::Output, resource, terminal,
};

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
    terminal::require_answer(args.yes)?;
    let store = open().await?;
    let question = "Retire all hosts that have been offline for so long, and end their agents?";
    if !terminal::confirm(args.yes, question)? {
        return Ok(ExitCode::FAILURE);
    }
    let retired = store.hosts_expire(args.offline_for, &args.by.actor).await?;
    args.output.print(&json!({ "retired": retired }), || {
        format!("retired {retired} hosts")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn offline_for(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_hours(1), Duration::from_hours(24 * 3660));
    parse::duration(text, least, most).map_err(|reason| format!("{text} {reason}"))
}
