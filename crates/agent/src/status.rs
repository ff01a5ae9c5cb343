//! The status file, which `svc-agent status` shows, also while the agent is down. It holds
//! no secret.
//!
//! The running agent writes it after a change, but at most every few seconds.

use std::{collections::BTreeMap, env, fs, io, path::Path, sync::Mutex, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use svc_proto::v1::{UpdateState, UpdateStep};
use tokio::sync::{Notify, watch};

use crate::{
    data_dir::{STATUS, content},
    recorder::Recorder,
    release::Notice,
    sync::locked,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub written_at: Option<Timestamp>,
    #[serde(default)]
    pub data_dir: Option<String>,
    /// SHA-256 of the public key: what a person compares before approving.
    pub fingerprint: String,
    pub agent_id: Option<String>,
    pub enrolment: Enrolment,
    /// The service's message about it, for people.
    pub message: Option<String>,
    pub jwt_expires_at: Option<Timestamp>,
    pub connection: Connection,
    pub interval_seconds: Option<u64>,
    pub spool: Spool,
    pub last_acknowledged_at: Option<Timestamp>,
    pub update: Option<Notice>,
    #[serde(default, flatten)]
    pub rare: Rare,
}

/// What changes so seldom that it is not copied with each acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rare {
    /// How far the agent is with the release that it was offered last.
    pub self_update: String,
    /// What the service decides about this agent, or may not, by field.
    pub settings: BTreeMap<String, String>,
    /// What is trusted beyond the system's roots: subject and short hash of each certificate.
    pub trust: Vec<String>,
    /// The cell that it was told to live in; none: where its configuration says.
    pub cell: Option<String>,
    /// Why it did not move to another cell.
    pub cell_problem: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enrolment {
    #[default]
    Unknown,
    Pending,
    Active,
    Rejected,
    Revoked,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub connected: bool,
    pub address: Option<String>,
    pub since: Option<Timestamp>,
    /// Why it is not connected.
    pub error: Option<String>,
    pub next_attempt_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spool {
    pub samples: u64,
    pub bytes: u64,
    pub oldest: Option<Timestamp>,
    /// Samples that were given up and declared lost.
    pub given_up: u64,
    /// Why samples are not stored; they are in memory only.
    #[serde(default)]
    pub problem: Option<String>,
    pub next_seq: u64,
    pub acked_seq: u64,
}

/// The current status. The parts of the agent update it; one task writes it to disk.
#[derive(Debug)]
pub struct Board {
    /// Without what is rare.
    status: Mutex<Status>,
    rare: Mutex<Rare>,
    changed: Notify,
}

impl Board {
    pub fn new(status: Status) -> Self {
        Self {
            rare: Mutex::new(status.rare.clone()),
            status: Mutex::new(status),
            changed: Notify::new(),
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut status = locked(&self.status);
        let before = status.clone();
        change(&mut status);
        if *status != before {
            self.changed.notify_one();
        }
    }

    pub fn change_rare(&self, change: impl FnOnce(&mut Rare)) {
        change(&mut locked(&self.rare));
        self.changed.notify_one();
    }

    /// Keeps up with updates.
    pub async fn follow(&self, mut updates: watch::Receiver<UpdateState>) {
        loop {
            let state = updates.borrow_and_update().clone();
            self.change_rare(|rare| rare.self_update = self_update(&state));
            if updates.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Writes the file after each change, but no more often than `every`.
    pub async fn run(&self, recorder: &Recorder, every: Duration) {
        loop {
            self.write(recorder);
            tokio::time::sleep(every).await;
            self.changed.notified().await;
        }
    }

    /// Also to the runtime folder of systemd, which is in memory: there it can be read while
    /// the disk does not work.
    pub fn write(&self, recorder: &Recorder) {
        let mut status = locked(&self.status).clone();
        status.written_at = Some(Timestamp::now());
        status.spool = spool(recorder);
        status.rare = locked(&self.rare).clone();
        let text = serde_json::to_string_pretty(&status).unwrap_or_default();
        if let Some(runtime) = env::var_os(RUNTIME_VARIABLE) {
            drop(replace(&Path::new(&runtime).join(STATUS), &text)); // The disk has one, too.
        }
        recorder.write_file(STATUS, text, false);
    }
}

fn self_update(state: &UpdateState) -> String {
    let step = match state.step() {
        UpdateStep::Unspecified => "none was offered".into(),
        step => step
            .as_str_name()
            .replace("UPDATE_STEP_", "")
            .to_lowercase(),
    };
    let texts = [step, state.version.clone(), state.reason.clone()];
    texts.join(" ").trim_end().into()
}

fn spool(recorder: &Recorder) -> Spool {
    let usage = recorder.usage();
    let (next_seq, acked_seq) = recorder.numbers();
    Spool {
        samples: usage.samples,
        bytes: usage.bytes,
        oldest: usage.oldest.and_then(|at| Timestamp::try_from(at).ok()),
        given_up: usage.given_up,
        problem: recorder.problem(),
        next_seq,
        acked_seq,
    }
}

/// The variable with which systemd names the folder of a unit in /run.
const RUNTIME_VARIABLE: &str = "RUNTIME_DIRECTORY";
/// That folder, for commands that are run by hand.
const RUNTIME: &str = "/run/svc-agent";

/// The newer one of the two statuses that the last agent on this folder wrote.
pub fn read(data_dir: &Path) -> Result<Option<Status>, io::Error> {
    let on_disk = read_file(&data_dir.join(STATUS))?;
    let runtime = env::var_os(RUNTIME_VARIABLE).unwrap_or_else(|| RUNTIME.into());
    let in_memory = read_file(&Path::new(&runtime).join(STATUS)).unwrap_or(None);
    // Another agent on this machine may have written it.
    let in_memory = in_memory.filter(|status| status.data_dir.as_deref() == data_dir.to_str());
    Ok(on_disk
        .into_iter()
        .chain(in_memory)
        .max_by_key(|status| status.written_at))
}

fn read_file(path: &Path) -> Result<Option<Status>, io::Error> {
    Ok(content(path)?.and_then(|text| serde_json::from_str(&text).ok()))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}
