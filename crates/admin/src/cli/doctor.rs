//! `svc-ingest doctor`: checks everything that the service needs, and changes nothing.
//!
//! Each check is one line: what it found, and what to do about it.

mod certificate;
mod rights;
mod trust;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::ExitCode,
    time::Instant,
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use svc_common::{error_chain::chain, tls::TlsPair};
use svc_ingest::{
    config::{Config, Database},
    signing::{self, Keyring},
};
use svc_pipeline::queue::{JetStream, QueueSettings, QueueUrl};
use svc_store::{
    HistoryState, InstanceRecord, SchemaError, SchemaState, SigningKeyUse, Store, StoreError,
    StoreOptions,
};

use super::{
    exit_code, key,
    output::{OutputArgs, short},
    serve,
};

/// Clocks that are further apart are a warning: they make log lines hard to compare.
const CLOCK_WARNING: SignedDuration = SignedDuration::from_secs(5);
/// In seconds. Hours are compacted within minutes of their end, so that after an hour something is wrong.
const COMPACTION_WARNING: f64 = 3600.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// What a check found about its subject.
type Finding = (Verdict, String);

impl Check {
    fn new(subject: &'static str, (verdict, finding): Finding) -> Self {
        Self {
            verdict,
            subject,
            finding,
        }
    }
}

fn ok(finding: impl Into<String>) -> Finding {
    (Verdict::Ok, finding.into())
}

fn warn(finding: impl Into<String>) -> Finding {
    (Verdict::Warn, finding.into())
}

fn fail(finding: impl Into<String>) -> Finding {
    (Verdict::Fail, finding.into())
}

pub async fn run(args: OutputArgs) -> anyhow::Result<ExitCode> {
    serve::raise_file_limit(); // As the service does: the number of connections depends on it.
    let mut checks = Vec::new();
    let mut pair = None;
    let keys = match Config::from_env() {
        Ok(config) => {
            pair = Some(config.grpc.tls.clone());
            checks.extend(check_queue(&config.queue).await);
            check_config(&config, &mut checks)
        }
        Err(problems) => {
            let failed = problems.0.into_iter();
            checks
                .extend(failed.map(|problem| Check::new(problem.variable, fail(problem.message))));
            None
        }
    };
    if let Ok(database) = Database::from_env() {
        checks.extend(check_database(database, keys.as_ref(), pair.as_ref()).await);
    }
    args.output.print(&checks, || lines(&checks))?;
    let failed = |check: &Check| check.verdict == Verdict::Fail;
    Ok(exit_code(!checks.iter().any(failed)))
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

/// Checks files and ports, and returns the keys for the comparison with other instances.
fn check_config(config: &Config, checks: &mut Vec<Check>) -> Option<Keyring> {
    let key = signing::read(&config.jwt_key_file).ok().flatten();
    let keys = key.map(|key| Keyring::new(key, config.jwt_extra_keys.clone()));
    let path = config.jwt_key_file.display();
    let signing_key = match &keys {
        Some(keys) => ok(format!("{path}: {}", shown_keys(keys))),
        None => warn(format!(
            "{path} does not exist: the first start generates it; back it up then"
        )),
    };
    let certificate = certificate::check(&config.grpc.tls, Timestamp::now());
    let connections = config.grpc.limits.connections;
    let connections = ok(format!("room for {connections} agents on this instance"));
    checks.extend([
        Check::new("variables", ok("all are well-formed")),
        Check::new("certificate", certificate),
        Check::new("signing key", signing_key),
        Check::new("INGEST_GRPC_PORT", check_port(config.grpc.address)),
        Check::new("INGEST_HTTP_PORT", check_port(config.http)),
        Check::new("connections", connections),
    ]);
    keys
}

fn shown_keys(keys: &Keyring) -> String {
    let (key, extra) = (keys.signing(), keys.extra_kids());
    let signing = format!("{} bits, kid {}", key.bits(), key.kid());
    match extra.is_empty() {
        true => signing,
        false => format!("{signing}; accepted too: {}", extra.join(", ")),
    }
}

/// The in-process queue needs no check.
async fn check_queue(queue: &QueueSettings) -> Option<Check> {
    let QueueUrl::Nats(servers) = &queue.url else {
        return None;
    };
    let finding = match JetStream::check(servers, queue).await {
        Ok(true) => ok("NATS answers, and the stream is as it should be"),
        Ok(false) => ok("NATS answers: the first start makes the stream"),
        Err(error) => fail(chain(&error)),
    };
    Some(Check::new("metrics queue", finding))
}

fn check_port(address: SocketAddr) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => ok(format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => warn(format!(
            "{address} is in use: fine if the service runs, otherwise stop the process that uses it"
        )),
        Err(error) => fail(format!("{address} cannot be bound: {error}")),
    }
}

async fn check_database(
    database: Database,
    keys: Option<&Keyring>,
    pair: Option<&TlsPair>,
) -> Vec<Check> {
    let shown = database.url.redacted();
    let looked = look_at_database(database, keys, pair, &shown).await;
    looked.unwrap_or_else(|error| {
        let finding = fail(format!("{shown}: {}", chain(&error)));
        vec![Check::new("database", finding)]
    })
}

async fn look_at_database(
    database: Database,
    keys: Option<&Keyring>,
    pair: Option<&TlsPair>,
    shown: &str,
) -> Result<Vec<Check>, StoreError> {
    let store = Store::new(database.url.clone(), StoreOptions::default())?;
    let owner = match &database.owner_url {
        Some(url) => Store::new(url.clone(), StoreOptions::default())?,
        None => store.clone(),
    };
    store.ping().await?;
    let asked = Instant::now();
    store.ping().await?;
    let millis = asked.elapsed().as_secs_f64() * 1e3;
    let server = rights::check_server(&owner.server_facts().await?);
    let schema = check_schema(&owner.schema_check().await?, database.auto_migrate);
    let usable = schema.0 == Verdict::Ok;
    let mut checks = vec![
        Check::new("database", ok(format!("{shown} answers in {millis:.1} ms"))),
        Check::new("server", server),
        Check::new("schema", schema),
        Check::new("clock", check_clock(clock_offset(&store).await?)),
    ];
    if usable {
        checks.push(Check::new("instances", check_siblings(&store, keys).await?));
        let history = check_history(&owner.history_state().await?);
        checks.push(Check::new("history", history));
        let trust = trust::check(&store.trust_anchors().await?, pair);
        checks.extend(trust.map(|finding| Check::new("trust anchors", finding)));
        checks.extend(rights::check_roles(&database, &owner, &store).await?);
    }
    Ok(checks)
}

/// Where nothing was compacted for an hour, no instance is live, or all of them fail.
fn check_history(history: &HistoryState) -> Finding {
    let days = format!("{} days of samples", history.days);
    if history.hosts_set_aside > 0 {
        return warn(format!(
            "{days}; {} hours of hosts could not be compacted: the table hosts_set_aside says why",
            history.hosts_set_aside
        ));
    }
    match history.compaction_lag_seconds > COMPACTION_WARNING {
        true => warn(format!(
            "{days}; not compacted for {:.0} minutes: fine if no instance runs, otherwise see its log",
            history.compaction_lag_seconds / 60.0
        )),
        false => ok(format!("{days}, closed hours compacted")),
    }
}

fn check_schema(state: &SchemaState, auto_migrate: bool) -> Finding {
    match state {
        SchemaState::Current => ok("up to date"),
        SchemaState::Behind { missing } => {
            let missing = missing.join(", ");
            match auto_migrate {
                true => warn(format!("lacks {missing}: the next start adds them")),
                false => fail(format!("lacks {missing}: run `svc-ingest migrate`")),
            }
        }
        SchemaState::Ahead { unknown } => ok(format!(
            "newer than this program, which can work with it ({})",
            unknown.join(", ")
        )),
        SchemaState::Altered { migration } => fail(format!(
            "{migration} was changed after it was applied: restore it"
        )),
        SchemaState::Unreleased => fail(SchemaError::Unreleased.to_string()),
    }
}

/// The database's clock minus ours.
async fn clock_offset(store: &Store) -> Result<SignedDuration, StoreError> {
    let reading = store.database_clock().await?;
    let theirs = reading.time_at(tokio::time::Instant::now());
    Ok(theirs.duration_since(Timestamp::now()))
}

fn check_clock(offset: SignedDuration) -> Finding {
    let finding = format!("{:.3} s from the database's", offset.as_secs_f64());
    match offset.abs() < CLOCK_WARNING {
        true => ok(finding),
        false => warn(finding),
    }
}

async fn check_siblings(store: &Store, keys: Option<&Keyring>) -> Result<Finding, StoreError> {
    let live = store.instances_live().await?;
    let is_stranger = |sibling: &&InstanceRecord| {
        keys.is_some_and(|keys| {
            !sibling.is_compatible_with(keys.signing().kid(), &keys.extra_kids())
        })
    };
    if let Some(stranger) = live.iter().find(is_stranger) {
        return Ok(fail(format!(
            "{} signs with another key ({}): share one key file, or rotate the key (`svc-ingest key rotate`)",
            stranger.hostname, stranger.kid
        )));
    }
    let uses = store.signing_keys().await?;
    Ok(match uses.len() {
        0 | 1 => ok(format!("{} live, all with one key", live.len())),
        _ => ok(describe_rotation(&live, &uses)),
    })
}

/// Which instance signs with which key, and what comes next for each key.
fn describe_rotation(live: &[InstanceRecord], uses: &[SigningKeyUse]) -> String {
    let now = Timestamp::now();
    let signer = |one: &InstanceRecord| format!("{} signs with {}", one.hostname, short(&one.kid));
    let used = |one: &SigningKeyUse| format!("{} {}", short(&one.kid), key::describe(one, now));
    let (signers, uses) = (live.iter().map(signer), uses.iter().map(used));
    signers.chain(uses).collect::<Vec<_>>().join("; ")
}
