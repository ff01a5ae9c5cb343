//! `svc-agent status`: shows the status of the agent on this machine, whether or not it
//! runs.

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use jiff::Timestamp;

use super::output::{Output, bytes, facts, print, when};
use crate::{
    config::{Flags, data_dir},
    data_dir::{holder, short},
    status::{self, Enrolment, Status},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Exit code 1 if no agent runs.
pub(super) fn run(flags: &Flags, args: &Args) -> anyhow::Result<ExitCode> {
    let folder = data_dir(flags)?;
    let process = holder(&folder);
    let known = status::read(&folder).with_context(|| {
        format!(
            "{} (run this as the agent's user, or root)",
            folder.display()
        )
    })?;
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
    match status {
        None => rows.push((
            "data",
            format!("{}: nothing is known here yet", folder.display()),
        )),
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
    let mut rows = vec![
        ("key", short(&status.fingerprint).to_owned()),
        ("fingerprint", status.fingerprint.clone()),
        (
            "agent id",
            status.agent_id.clone().unwrap_or_else(|| "-".into()),
        ),
        ("enrolment", enrolment(status.enrolment).into()),
    ];
    rows.extend(status.message.clone().map(|message| ("", message)));
    rows.push(("connection", connection(status, runs, now)));
    rows.extend(status.connection.error.clone().map(|error| ("", error)));
    let spool = &status.spool;
    rows.extend([
        (
            "acknowledged",
            format!(
                "up to {}, last {}",
                spool.acked_seq,
                moment(status.last_acknowledged_at)
            ),
        ),
        (
            "waiting",
            format!(
                "{} samples, {} on disk, oldest {}",
                spool.samples,
                bytes(spool.bytes),
                moment(spool.oldest)
            ),
        ),
        (
            "given up",
            format!("{} samples, declared lost", spool.given_up),
        ),
        ("JWT until", moment(status.jwt_expires_at)),
        ("as of", moment(status.written_at)),
    ]);
    let update = status.update.as_ref();
    rows.extend(update.map(|update| {
        (
            "update",
            format!("{} is available: {}", update.version, update.url),
        )
    }));
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
    match (
        connection.connected && runs,
        connection.since,
        connection.next_attempt_at,
    ) {
        (true, Some(since), _) => format!("connected to {address} since {}", when(since, now)),
        (true, None, _) => format!("connected to {address}"),
        (false, _, Some(next)) if runs => {
            format!("not connected, next attempt {}", when(next, now))
        }
        _ => "not connected".into(),
    }
}
