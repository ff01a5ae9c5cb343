//! `svc-ingest doctor`: checks everything that the service needs, and changes nothing.
//!
//! Each check is one line: what it found, and what to do about it.

use std::{net::TcpListener, process::ExitCode, time::Instant};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use svc_store::{HistoryState, SchemaState, Store, StoreError, StoreOptions};

use super::{exit_code, output::Output, serve};
use crate::{
    config::{Config, Database, Problems},
    listener::CertificateFacts,
    queue::{JetStream, QueueSettings, QueueUrl},
    signing,
};

/// A certificate that expires sooner is a warning.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(24 * 21);
/// Clocks that are further apart are a warning: they make log lines hard to compare.
const CLOCK_WARNING: SignedDuration = SignedDuration::from_secs(5);
/// In seconds. Rollups are computed every few minutes, so that after an hour something is wrong.
const ROLLUP_WARNING: f64 = 3600.0;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    verdict: Verdict,
    subject: &'static str,
    finding: String,
}

impl Check {
    fn ok(subject: &'static str, finding: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, subject, finding)
    }

    fn warn(subject: &'static str, finding: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, subject, finding)
    }

    fn fail(subject: &'static str, finding: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, subject, finding)
    }

    /// `ok` where `good` is true, a warning otherwise.
    fn ok_if(good: bool, subject: &'static str, finding: String) -> Self {
        let verdict = if good { Verdict::Ok } else { Verdict::Warn };
        Self::new(verdict, subject, finding)
    }

    fn new(verdict: Verdict, subject: &'static str, finding: impl Into<String>) -> Self {
        Self {
            verdict,
            subject,
            finding: finding.into(),
        }
    }
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    serve::raise_file_limit(); // As the service does: the number of connections depends on it.
    let mut checks = Vec::new();
    let kid = match Config::from_env() {
        Ok(config) => {
            checks.extend(check_queue(&config.queue).await);
            check_config(&config, &mut checks)
        }
        Err(problems) => {
            checks.extend(failures(&problems));
            None
        }
    };
    if let Ok(database) = Database::from_env() {
        checks.extend(check_database(database, kid.as_deref()).await);
    }
    args.output.print(&checks, || lines(&checks))?;
    Ok(exit_code(
        checks.iter().all(|check| check.verdict != Verdict::Fail),
    ))
}

fn failures(problems: &Problems) -> impl Iterator<Item = Check> {
    problems
        .0
        .iter()
        .map(|problem| Check::fail(problem.variable, problem.message.clone()))
}

fn lines(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let mark = match check.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        format!("{mark}  {:<22}  {}", check.subject, check.finding)
    };
    checks.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Checks files and ports, and returns the key's id for the comparison with other instances.
fn check_config(config: &Config, checks: &mut Vec<Check>) -> Option<String> {
    checks.push(Check::ok("variables", "all are well-formed"));
    checks.push(check_certificate(config.grpc.tls.facts(), Timestamp::now()));
    let key = signing::read(&config.jwt_key_file).ok().flatten();
    let path = config.jwt_key_file.display();
    checks.push(match &key {
        Some(key) => Check::ok(
            "signing key",
            format!("{path}: {} bits, kid {}", key.bits(), key.kid()),
        ),
        None => Check::warn(
            "signing key",
            format!("{path} does not exist: the first start generates it; back it up then"),
        ),
    });
    checks.push(check_port("INGEST_GRPC_PORT", config.grpc.address));
    checks.push(check_port("INGEST_HTTP_PORT", config.http));
    let connections = config.grpc.limits.connections;
    checks.push(Check::ok(
        "connections",
        format!("room for {connections} agents on this instance"),
    ));
    key.map(|key| key.kid().to_owned())
}

/// The in-process queue needs no check.
async fn check_queue(queue: &QueueSettings) -> Option<Check> {
    let QueueUrl::Nats(servers) = &queue.url else {
        return None;
    };
    Some(match JetStream::check(servers, queue).await {
        Ok(true) => Check::ok(
            "metrics queue",
            "NATS answers, and the stream is as it should be",
        ),
        Ok(false) => Check::ok(
            "metrics queue",
            "NATS answers: the first start makes the stream",
        ),
        Err(error) => {
            let reason = format!("{:#}", anyhow::Error::from(error));
            Check::fail("metrics queue", reason)
        }
    })
}

fn check_certificate(facts: Option<CertificateFacts>, now: Timestamp) -> Check {
    const SUBJECT: &str = "certificate";
    let Some(facts) = facts else {
        return Check::warn(SUBJECT, "its names and dates cannot be read");
    };
    let left = facts.not_after.duration_since(now);
    let names = facts.names.join(", ");
    if facts.names.is_empty() {
        return Check::warn(
            SUBJECT,
            "it names no host (subjectAltName): agents will refuse it",
        );
    }
    if facts.expired(now) {
        let finding = format!(
            "for {names}: it ended on {}: replace the files, the service picks them up",
            facts.not_after
        );
        return Check::warn(SUBJECT, finding);
    }
    let days = left.as_hours() / 24;
    let finding = format!("for {names}; key matches; {days} days left");
    Check::ok_if(left >= EXPIRY_WARNING, SUBJECT, finding)
}

fn check_port(variable: &'static str, address: std::net::SocketAddr) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(variable, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Check::warn(
            variable,
            format!(
                "{address} is in use: fine if the service runs, otherwise stop the process that uses it"
            ),
        ),
        Err(error) => Check::fail(variable, format!("{address} cannot be bound: {error}")),
    }
}

async fn check_database(database: Database, kid: Option<&str>) -> Vec<Check> {
    let shown = database.url.redacted();
    let looked = look_at_database(database, kid, &shown).await;
    looked.unwrap_or_else(|error| {
        let reason = format!("{shown}: {:#}", anyhow::Error::from(error));
        vec![Check::fail("database", reason)]
    })
}

async fn look_at_database(
    database: Database,
    kid: Option<&str>,
    shown: &str,
) -> Result<Vec<Check>, StoreError> {
    let store = Store::new(database.url, StoreOptions::default())?;
    store.ping().await?;
    let asked = Instant::now();
    store.ping().await?;
    let answer = format!(
        "{shown} answers in {:.1} ms",
        asked.elapsed().as_secs_f64() * 1e3
    );
    let schema = check_schema(&store.schema_check().await?, database.auto_migrate);
    let usable = schema.verdict == Verdict::Ok;
    let mut checks = vec![Check::ok("database", answer), schema];
    checks.push(check_clock(store.database_clock_offset().await?));
    if usable {
        checks.push(check_siblings(&store, kid).await?);
        checks.push(check_history(&store.history_state().await?));
    }
    Ok(checks)
}

/// Where no rollup was computed for an hour, no instance is live, or all of them fail.
fn check_history(history: &HistoryState) -> Check {
    const SUBJECT: &str = "history";
    let days = format!("{} days of samples", history.days);
    match history.oldest_change_seconds > ROLLUP_WARNING {
        true => Check::warn(
            SUBJECT,
            format!(
                "{days}; not rolled up for {:.0} minutes: fine if no instance runs, otherwise see its log",
                history.oldest_change_seconds / 60.0
            ),
        ),
        false => Check::ok(SUBJECT, format!("{days}, rolled up")),
    }
}

fn check_schema(state: &SchemaState, auto_migrate: bool) -> Check {
    const SUBJECT: &str = "schema";
    match state {
        SchemaState::Current => Check::ok(SUBJECT, "up to date"),
        SchemaState::Behind { missing } if auto_migrate => Check::warn(
            SUBJECT,
            format!("lacks {}: the next start adds them", missing.join(", ")),
        ),
        SchemaState::Behind { missing } => Check::fail(
            SUBJECT,
            format!("lacks {}: run `svc-ingest migrate`", missing.join(", ")),
        ),
        SchemaState::Ahead { unknown } => Check::ok(
            SUBJECT,
            format!(
                "newer than this program, which can work with it ({})",
                unknown.join(", ")
            ),
        ),
        SchemaState::Altered { migration, .. } => Check::fail(
            SUBJECT,
            format!("{migration} was changed after it was applied: restore it"),
        ),
    }
}

fn check_clock(offset: SignedDuration) -> Check {
    let finding = format!("{:.3} s from the database's", offset.as_secs_f64());
    Check::ok_if(offset.abs() < CLOCK_WARNING, "clock", finding)
}

async fn check_siblings(store: &Store, kid: Option<&str>) -> Result<Check, StoreError> {
    const SUBJECT: &str = "instances";
    let live = store.instances_live().await?;
    let stranger = live
        .iter()
        .find(|sibling| kid.is_some_and(|kid| sibling.kid != kid));
    Ok(match stranger {
        Some(stranger) => {
            let finding = format!(
                "{} signs with another key ({}): share one key file",
                stranger.hostname, stranger.kid
            );
            Check::fail(SUBJECT, finding)
        }
        None => Check::ok(SUBJECT, format!("{} live, all with one key", live.len())),
    })
}
