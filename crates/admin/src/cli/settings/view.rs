//! What `svc-ingest settings list` and `settings show` print.

use std::process::ExitCode;

use anyhow::Context;
use svc_store::{AgentSettingsView, HostRecord, SettingsRule};

use crate::cli::{
    database::open,
    output::{self, Column, Fit, Output, OutputArgs, facts},
    resource,
    time::lasting,
};

const COLUMNS: &[Column<SettingsRule>] = &[
    ("RULE", Fit::Whole, |rule| rule.id.to_string()),
    ("PRIORITY", Fit::Whole, |rule| rule.priority.to_string()),
    ("HOSTS", Fit::Wraps, |rule| match rule.selector.is_empty() {
        true => "all".into(),
        false => rule.selector.to_string(),
    }),
    ("SHARE", Fit::Whole, |rule| format!("{} %", rule.share)),
    ("SETTINGS", Fit::Wraps, |rule| {
        let fields = rule.patch.fields().into_iter();
        let fields: Vec<String> = fields
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        fields.join("; ")
    }),
    ("CHANGED", Fit::Wraps, |rule| {
        format!("{} by {}", lasting(Some(rule.changed_at)), rule.changed_by)
    }),
];

pub async fn list(args: OutputArgs) -> anyhow::Result<ExitCode> {
    let rules = open().await?.settings_rules().await?;
    args.output.print(&rules, || match rules.is_empty() {
        true => "no rule yet: agents behave as their own configuration says".into(),
        false => output::table(COLUMNS, &rules),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub async fn show(host: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let host = resource::select::<HostRecord>(&store, host).await?;
    let agent = host.agent_id.context("the host has no active agent")?;
    let view = store.settings_of(agent).await?;
    let view = view.context("the agent was deleted just now")?;
    output.print(&view, || describe(&host.hostname, &view))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(hostname: &str, view: &AgentSettingsView) -> String {
    let mut rows = vec![("host", hostname.to_owned())];
    let fields = view.fields().into_iter();
    rows.extend(fields.map(|(name, value, rule)| (name, format!("{value} (rule {rule})"))));
    if rows.len() == 1 {
        rows.push(("settings", "no rule sets anything".into()));
    }
    let state = match view.since {
        Some(since) => format!("{}, {}", view.state(), lasting(Some(since))),
        None => view.state().into(),
    };
    rows.push(("its agent", state));
    let refused = view.refused().iter();
    rows.extend(refused.map(|one| ("refuses", format!("{}: {}", one.field, one.reason))));
    facts(&rows)
}
