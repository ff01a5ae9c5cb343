//! What `svc-ingest rollout list` and `rollout show` print.

use std::process::ExitCode;

use anyhow::Context;
use svc_common::text::visible;
use svc_store::{RolloutAgent, RolloutDetail, RolloutRecord};

use crate::cli::{
    database::open,
    output::{self, Column, Fit, Output, OutputArgs, facts, or_dash},
    time::{in_full, lasting},
};

const SHOWN: u32 = 1000;

const COLUMNS: &[Column<RolloutRecord>] = &[
    ("SERIAL", Fit::Whole, |rollout| rollout.serial.to_string()),
    ("VERSION", Fit::Whole, |rollout| rollout.version.clone()),
    ("HOSTS", Fit::Wraps, selector),
    ("STATE", Fit::Whole, |rollout| rollout.state.to_string()),
    ("STAGE", Fit::Whole, stage),
    ("OFFERED", Fit::Whole, |rollout| rollout.offered.to_string()),
    ("APPROVED", Fit::Whole, |rollout| {
        rollout.approved.to_string()
    }),
    ("REFUSED", Fit::Whole, |rollout| rollout.refused.to_string()),
    ("UNABLE", Fit::Whole, |rollout| rollout.unable.to_string()),
    ("NOTE", Fit::Wraps, |rollout| {
        or_dash(rollout.reason.clone())
    }),
];

const AGENTS: &[Column<RolloutAgent>] = &[
    ("HOST", Fit::Wraps, |agent| agent.hostname.clone()),
    ("STEP", Fit::Whole, |agent| agent.step.to_string()),
    ("SINCE", Fit::Whole, |agent| lasting(Some(agent.since))),
    ("PRESENCE", Fit::Whole, |agent| {
        if agent.online { "online" } else { "offline" }.into()
    }),
    ("REASON", Fit::Wraps, |agent| or_dash(agent.reason.clone())),
];

pub async fn list(args: OutputArgs) -> anyhow::Result<ExitCode> {
    let rollouts = open().await?.rollouts_list(SHOWN).await?.rows;
    args.output.print(&rollouts, || match rollouts.is_empty() {
        true => "no rollout yet: `svc-ingest rollout start` begins one".into(),
        false => output::table(COLUMNS, &rollouts),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub async fn show(serial: i64, output: Output) -> anyhow::Result<ExitCode> {
    let detail = open().await?.rollout_show(serial).await?;
    let detail = detail.with_context(|| {
        format!("the release {serial} has no rollout: `svc-ingest rollout list` shows all")
    })?;
    output.print(&detail, || describe(&detail))?;
    Ok(ExitCode::SUCCESS)
}

/// Logs come last, because they are long.
fn describe(detail: &RolloutDetail) -> String {
    let rollout = &detail.rollout;
    let soak = format!("{} min", rollout.soak_seconds / 60);
    let hours = or_dash(rollout.hours.to_string());
    let undoes = or_dash(rollout.undoes.map(|serial| serial.to_string()));
    let mut text = facts(&[
        ("serial", rollout.serial.to_string()),
        ("version", rollout.version.clone()),
        ("hosts", selector(rollout)),
        ("takes back", undoes),
        (
            "state",
            format!("{}, {}", rollout.state, lasting(Some(rollout.stage_since))),
        ),
        ("note", or_dash(rollout.reason.clone())),
        ("stage", stage(rollout)),
        ("soak", soak),
        ("hours (UTC)", hours),
        (
            "started",
            format!("{} by {}", in_full(rollout.created_at), rollout.created_by),
        ),
        ("offered", rollout.offered.to_string()),
        ("approved", rollout.approved.to_string()),
        ("refused", rollout.refused.to_string()),
        ("unable", rollout.unable.to_string()),
        ("left out", rollout.skipped.to_string()),
    ]);
    if !detail.agents.is_empty() {
        text += &format!("\n\n{}", output::table(AGENTS, &detail.agents));
    }
    for agent in detail
        .agents
        .iter()
        .filter(|agent| !agent.log_tail.is_empty())
    {
        let lines = agent
            .log_tail
            .lines()
            .map(|line| format!("\n  {}", visible(line)));
        let (host, lines) = (visible(&agent.hostname), lines.collect::<String>());
        text += &format!("\n\nthe log of {host} ends with:{lines}");
    }
    text
}

fn selector(rollout: &RolloutRecord) -> String {
    match rollout.selector.is_empty() {
        true => "all".into(),
        false => rollout.selector.to_string(),
    }
}

fn stage(rollout: &RolloutRecord) -> String {
    let number = usize::try_from(rollout.stage).unwrap_or_default();
    let reach = rollout.stages.get(number).map(ToString::to_string);
    format!(
        "{} ({} of {})",
        or_dash(reach),
        number + 1,
        rollout.stages.len()
    )
}
