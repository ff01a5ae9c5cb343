//! The status file, which `svc-agent status` shows, also while the agent is down. It holds
//! no secret.
//!
//! The running agent writes it after a change, but at most every few seconds.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    data_dir::{DataDir, STATUS},
    recorder::Recorder,
    release::Notice,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub written_at: Option<Timestamp>,
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
    pub next_seq: u64,
    pub acked_seq: u64,
}

/// The current status. The parts of the agent update it; one task writes it to disk.
#[derive(Debug)]
pub struct Board {
    status: Mutex<Status>,
    changed: Notify,
}

impl Board {
    pub fn new(status: Status) -> Self {
        Self {
            status: Mutex::new(status),
            changed: Notify::new(),
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status();
        let before = status.clone();
        change(&mut status);
        if *status != before {
            self.changed.notify_one();
        }
    }

    /// Writes the file after each change, but no more often than `every`.
    pub async fn run(&self, dir: &Arc<DataDir>, recorder: &Recorder, every: Duration) {
        loop {
            self.write(dir, recorder);
            tokio::time::sleep(every).await;
            self.changed.notified().await;
        }
    }

    /// A failure is only logged: the agent works without the file.
    pub fn write(&self, dir: &DataDir, recorder: &Recorder) {
        let mut status = self.status().clone();
        status.written_at = Some(Timestamp::now());
        status.spool = spool(recorder);
        let text = serde_json::to_string_pretty(&status).unwrap_or_default();
        if let Err(error) = dir.write_unsynced(STATUS, &text) {
            tracing::debug!(%error, "the status file could not be written");
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spool(recorder: &Recorder) -> Spool {
    let usage = recorder.usage();
    let (next_seq, acked_seq) = recorder.numbers();
    Spool {
        samples: usage.samples,
        bytes: usage.bytes,
        oldest: usage.oldest.and_then(|at| Timestamp::try_from(at).ok()),
        given_up: usage.given_up,
        next_seq,
        acked_seq,
    }
}

/// The status that the last agent on this folder wrote.
pub fn read(data_dir: &std::path::Path) -> Result<Option<Status>, std::io::Error> {
    match std::fs::read_to_string(data_dir.join(STATUS)) {
        Ok(text) => Ok(serde_json::from_str(&text).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
