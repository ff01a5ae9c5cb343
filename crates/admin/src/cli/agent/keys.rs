//! `svc-ingest agent change-key`: asks agents for new keys. And the keys of an agent, as `agent show` prints them.

use std::process::ExitCode;

use clap::ArgGroup;
use serde_json::json;
use svc_store::{AgentDetail, AgentRecord, KeyChange, Labels};

use super::fingerprint;
use crate::cli::{
    Usage, actor::Attribution, database::open, labels, output::Output, resource, time::in_full,
};

/// Whose keys change is never left to a default.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("whose").required(true).args(["agent", "selector", "all"]))]
pub struct ChangeKeyArgs {
    /// Its id, a prefix of its id (4 characters or more) or of its key (8 or more), or its host's name
    agent: Option<String>,
    /// Agents on hosts with this label, key=value; several labels must all match
    #[arg(long, value_name = "KEY=VALUE")]
    selector: Vec<Labels>,
    /// All active agents
    #[arg(long)]
    all: bool,
    /// The share of these agents, in percent; a larger share later includes the same ones
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0, value_parser = share, conflicts_with = "agent")]
    share: f64,
    #[command(flatten)]
    attribution: Attribution,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub async fn change(args: ChangeKeyArgs) -> anyhow::Result<ExitCode> {
    let selector = labels::joined(args.selector)?;
    if args.agent.is_none() && !args.all && selector.is_empty() {
        return Err(Usage("--selector needs a label; --all means every agent".into()).into());
    }
    let store = open().await?;
    let agent = match &args.agent {
        Some(name) => Some(resource::select::<AgentRecord>(&store, name).await?.id),
        None => None,
    };
    let change = KeyChange {
        agent,
        selector,
        share: args.share,
    };
    let (actor, reason) = (&args.attribution.by.actor, args.attribution.reason);
    let asked = store.agents_change_key(&change, actor, reason.as_deref());
    let asked = asked.await?;
    let done = || {
        format!(
            "{asked} agents are asked for a new key: at once if they are connected, otherwise when they connect"
        )
    };
    args.output.print(&json!({ "asked": asked }), done)?;
    Ok(ExitCode::SUCCESS)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.trim_end_matches('%').parse().ok();
    let share = share.filter(|share: &f64| *share > 0.0 && *share <= 100.0);
    share.ok_or_else(|| format!("{text} is not a share between 0 and 100 percent"))
}

/// The rows of the keys beside the present one. A retired key that is used is evidence of a copy.
pub(super) fn rows(detail: &AgentDetail) -> Vec<(&'static str, String)> {
    let keys = &detail.keys;
    let mut rows = vec![("key since", in_full(keys.since))];
    if let Some(at) = keys.change_asked_at {
        rows.push(("new key asked for", in_full(at)));
    }
    if let Some(next) = &keys.next {
        let since = in_full(next.since);
        let text = format!("{} since {since}, not used yet", fingerprint(&next.key));
        rows.push(("next key", text));
    }
    for old in &keys.retired {
        let retired = old.retired_at.map(in_full).unwrap_or_default();
        let used = old.used_at.map(|at| {
            let from = old.used_from.map(|from| format!(" from {from}"));
            format!(
                "; used by a copy at {}{}",
                in_full(at),
                from.unwrap_or_default()
            )
        });
        let text = format!(
            "{} at {retired}{}",
            fingerprint(&old.key),
            used.unwrap_or_default()
        );
        rows.push(("retired key", text));
    }
    rows
}
