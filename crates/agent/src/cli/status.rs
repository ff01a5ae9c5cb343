//! `svc-agent status`: shows the status of the agent on this machine, whether or not it
//! runs.

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use jiff::Timestamp;

use super::output::{Output, OutputArgs, bytes, facts, print, when};
use crate::{
    config::{Flags, data_dir},
    data_dir::{holder, short},
    release::Notice,
    status::{self, Enrolment, Status},
};

/// Exit code 1 if no agent runs.
pub(super) fn run(flags: &Flags, args: &OutputArgs) -> anyhow::Result<ExitCode> {
    let folder = data_dir(flags)?;
    let process = holder(&folder);
    let shown = folder.display();
    let known = status::read(&folder)
        .with_context(|| format!("{shown} (run this as the agent's user, or root)"))?;
    match args.output {
        Output::Json => print(&json(process.as_deref(), known.as_ref())?)?,
        Output::Table => print(&table(&folder, process.as_deref(), known.as_ref()))?,
    }
    Ok(match process {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn json(process: Option<&str>, status: Option<&Status>) -> anyhow::Result<String> {
    let value =
        serde_json::json!({ "running": process.is_some(), "process": process, "status": status });
    Ok(serde_json::to_string_pretty(&value)?)
}

fn table(folder: &Path, process: Option<&str>, status: Option<&Status>) -> String {
    let mut rows = vec![("agent", running(process, status))];
    let nothing = format!("{}: nothing is known here yet", folder.display());
    match status {
        None => rows.push(("data", nothing)),
        Some(status) => rows.extend(details(status, process.is_some())),
    }
    facts(&rows)
}

fn running(process: Option<&str>, status: Option<&Status>) -> String {
    match (process, status) {
        (Some(id), Some(status)) => format!("running, process {id}, version {}", status.version),
        (Some(id), None) => format!("running, process {id}"),
        (None, _) => "not running; its last status follows".into(),
    }
}

fn details(status: &Status, runs: bool) -> Vec<(&'static str, String)> {
    let now = Timestamp::now();
    let moment = |at: Option<Timestamp>| at.map_or_else(|| "-".into(), |at| when(at, now));
    let agent_id = status.agent_id.clone();
    let mut rows = vec![
        ("key", short(&status.fingerprint).to_owned()),
        ("fingerprint", status.fingerprint.clone()),
        ("agent id", agent_id.unwrap_or_else(|| "-".into())),
        ("enrolment", enrolment(status.enrolment).into()),
    ];
    rows.extend(status.message.clone().map(|message| ("", message)));
    rows.push(("connection", connection(status, runs, now)));
    rows.extend(status.connection.error.clone().map(|error| ("", error)));
    let cell = status.rare.cell.clone();
    rows.push(("cell", cell.unwrap_or_else(|| "as configured".into())));
    let problem = status.rare.cell_problem.clone();
    rows.extend(problem.map(|problem| ("", format!("not moved: {problem}"))));
    let spool = &status.spool;
    let last = moment(status.last_acknowledged_at);
    let (size, oldest) = (bytes(spool.bytes), moment(spool.oldest));
    let waiting = format!("{} samples, {size} on disk, oldest {oldest}", spool.samples);
    let problem = spool.problem.clone();
    let problem = problem.unwrap_or_else(|| "samples are stored".into());
    let given_up = format!("{} samples, declared lost", spool.given_up);
    rows.extend([
        (
            "acknowledged",
            format!("up to {}, last {last}", spool.acked_seq),
        ),
        ("waiting", waiting),
        ("given up", given_up),
        ("disk", problem),
        ("JWT until", moment(status.jwt_expires_at)),
        ("as of", moment(status.written_at)),
    ]);
    let names = std::iter::once("trusts").chain(std::iter::repeat(""));
    rows.extend(names.zip(status.rare.trust.iter().cloned()));
    if let Some(Notice { version, url }) = &status.update {
        rows.push(("update", format!("{version} is available: {url}")));
    }
    rows.push(("updates", status.rare.self_update.clone()));
    for (field, text) in &status.rare.settings {
        rows.push(("setting", format!("{field}: {text}")));
    }
    rows
}

fn enrolment(enrolment: Enrolment) -> &'static str {
    match enrolment {
        Enrolment::Unknown => "not registered yet",
        Enrolment::Pending => "waiting for approval",
        Enrolment::Active => "active",
        Enrolment::Rejected => "rejected",
        Enrolment::Revoked => "revoked",
    }
}

fn connection(status: &Status, runs: bool, now: Timestamp) -> String {
    let connection = &status.connection;
    let address = connection.address.clone().unwrap_or_default();
    let connected = connection.connected && runs;
    match (connected, connection.since, connection.next_attempt_at) {
        (true, Some(since), _) => format!("connected to {address} since {}", when(since, now)),
        (true, None, _) => format!("connected to {address}"),
        (false, _, Some(next)) if runs => {
            format!("not connected, next attempt {}", when(next, now))
        }
        _ => "not connected".into(),
    }
}
