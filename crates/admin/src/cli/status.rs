//! `svc-ingest status`: counts of tokens, agents and hosts, the history, and the live instances.

use std::process::ExitCode;

use jiff::Timestamp;
use svc_store::{HistoryState, InstanceRecord, Overview, SigningKeyUse};

use super::{
    database::open,
    key,
    output::{self, Column, Fit, facts, or_dash, short},
    terminal,
    time::when,
};

pub use super::resource::ViewArgs as Args;

const COLUMNS: &[Column<InstanceRecord>] = &[
    ("INSTANCE", Fit::Whole, |instance| short(instance.id)),
    ("HOST", Fit::Wraps, |instance| instance.hostname.clone()),
    ("VERSION", Fit::Whole, |instance| instance.version.clone()),
    ("GRPC", Fit::Whole, |instance| instance.grpc_address.clone()),
    ("HTTP", Fit::Whole, |instance| instance.http_address.clone()),
    ("KEY", Fit::Whole, |instance| short(&instance.kid)),
    ("STARTED", Fit::Wraps, |instance| {
        when(Some(instance.started_at))
    }),
];

const KEY_COLUMNS: &[Column<SigningKeyUse>] = &[
    ("KEY", Fit::Whole, |key| short(&key.kid)),
    ("USE", Fit::Wraps, |key| {
        key::describe(key, Timestamp::now())
    }),
];

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    terminal::show(args.watch, async || {
        let overview = store.overview().await?;
        args.output.render(&overview, || screen(&overview))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn screen(overview: &Overview) -> String {
    let mut parts = vec![counts(overview)];
    if !overview.instances.is_empty() {
        parts.push(output::table(COLUMNS, &overview.instances));
    }
    if overview.keys.len() > 1 {
        parts.push(output::table(KEY_COLUMNS, &overview.keys));
    }
    parts.extend(advice(overview));
    parts.join("\n\n")
}

fn counts(overview: &Overview) -> String {
    let kids: Vec<&str> = overview.kids.iter().map(String::as_str).collect();
    let (tokens, agents, hosts) = (&overview.tokens, &overview.agents, &overview.hosts);
    let active = format!(
        "{} active ({} online, {} offline)",
        agents.active, agents.online, agents.offline
    );
    let tokens = format!(
        "{} active, {} expired, {} exhausted, {} revoked",
        tokens.active, tokens.expired, tokens.exhausted, tokens.revoked
    );
    let agents = format!(
        "{} pending, {active}, {} rejected, {} revoked",
        agents.pending, agents.rejected, agents.revoked
    );
    let hosts = format!("{} in service, {} retired", hosts.in_service, hosts.retired);
    facts(&[
        ("tokens", tokens),
        ("agents", agents),
        ("hosts", hosts),
        ("history", kept(&overview.history)),
        ("instances", format!("{} live", overview.instances.len())),
        ("keys", or_dash(kids.join(", "))),
    ])
}

fn kept(history: &HistoryState) -> String {
    let days = match (&history.oldest_day, &history.newest_day) {
        (Some(oldest), Some(newest)) => format!("{} days, {oldest} to {newest}", history.days),
        _ => "no days yet".to_owned(),
    };
    let behind = match history.hours_to_compact {
        0 => "all closed hours are compacted".to_owned(),
        hours => format!(
            "to be compacted: {hours} hours, the oldest closed {:.0} s ago",
            history.compaction_lag_seconds
        ),
    };
    format!("{days}; {behind}")
}

/// What needs an administrator's attention.
fn advice(overview: &Overview) -> Vec<String> {
    let pending = overview.agents.pending;
    let keys = overview.kids.len();
    let aside = overview.history.hosts_set_aside;
    [
        (aside > 0).then(|| {
            format!("{aside} hours of hosts could not be compacted and are tried again every few minutes: the table hosts_set_aside says why")
        }),
        (pending > 0).then(|| {
            format!("{pending} wait for a decision: `svc-ingest agent list --status pending`")
        }),
        overview
            .instances
            .is_empty()
            .then(|| "no instance is live: agents cannot connect".to_owned()),
        (keys > 1).then(|| {
            format!("instances sign with {keys} different keys: give them all the new one to complete the rotation")
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}
