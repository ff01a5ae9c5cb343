//! The keys of an agent of a fleet. One that changes them makes a next key when it is asked, announces it on its stream, connects
//! with it beside that stream once the service has stored it, and leaves the old stream then.
//!
//! An agent with a next key tries that one first, whatever became of its stream: the answer to its announcement, or to its first
//! use, may have been lost. If the service refuses the next key, the agent uses the present one until a stream is welcomed, and
//! announces the next one again there. So a change costs at most one handshake more with each stream.

use std::time::Duration;

use anyhow::Result;
use rustls::ClientConfig;
use svc_harness::Tls;
use svc_proto::v1::{KeyStored, NewKey};
use svc_sandbox::Identity;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::Status;
use tonic_types::StatusExt;

use crate::new_key::{key_hash, new_key};

/// How many agents of this process connect at once of their own accord: all that wait need a file descriptor more, and more than
/// the machine gets done in time would only try again.
static CONNECTING: Semaphore = Semaphore::const_new(500);

/// What happened to the keys of an agent, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyCounts {
    pub announced: u64,
    /// Next keys that were welcomed.
    pub changed: u64,
    /// Next keys that the service did not store, or forgot.
    pub refused: u64,
    /// Streams that were lost between an announcement and the first use.
    pub interrupted: u64,
    /// Of these, streams over which the service had already said that the key is stored.
    pub stored_before: u64,
    /// Handshakes with a next key that the service did not know.
    pub second_handshakes: u64,
    /// Refusals of the present key, as that of a copy.
    pub as_a_copy: u64,
}

impl std::iter::Sum for KeyCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            announced: sum.announced + one.announced,
            changed: sum.changed + one.changed,
            refused: sum.refused + one.refused,
            interrupted: sum.interrupted + one.interrupted,
            stored_before: sum.stored_before + one.stored_before,
            second_handshakes: sum.second_handshakes + one.second_handshakes,
            as_a_copy: sum.as_a_copy + one.as_a_copy,
        })
    }
}

#[derive(Debug)]
struct Key {
    identity: Identity,
    tls: ClientConfig,
}

impl Key {
    fn new(identity: Identity) -> Result<Self> {
        let tls = Tls::with(&identity).config()?;
        Ok(Self { identity, tls })
    }
}

#[derive(Debug)]
pub(super) struct Keys {
    present: Key,
    next: Option<Key>,
    /// Whether the service has refused the next key since the last welcome.
    next_unknown: bool,
    /// Whether the next key was announced on this stream, and the service has stored it.
    is_announced: bool,
    is_stored: bool,
    pub counts: KeyCounts,
}

impl Keys {
    pub fn new(present: Identity) -> Result<Self> {
        Ok(Self {
            present: Key::new(present)?,
            next: None,
            next_unknown: false,
            is_announced: false,
            is_stored: false,
            counts: KeyCounts::default(),
        })
    }

    /// SHA-256 of the present key, in hexadecimal.
    pub fn fingerprint(&self) -> Result<String> {
        let hash = key_hash(&self.present.identity)?;
        Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// What the next connection uses.
    pub fn tls(&self) -> ClientConfig {
        let next = self.next.as_ref().filter(|_| !self.next_unknown);
        next.unwrap_or(&self.present).tls.clone()
    }

    /// Returns whether to connect at once with the present key instead of the next one.
    pub fn falls_back(&mut self, refusal: Option<&Status>) -> bool {
        let details = refusal.map(StatusExt::get_error_details);
        let info = details.as_ref().and_then(|details| details.error_info());
        let refused = info.is_some_and(|info| is_of_key(&info.reason));
        let used_next = self.next.is_some() && !self.next_unknown;
        let falls_back = refused && used_next;
        self.counts.second_handshakes += u64::from(falls_back);
        self.counts.as_a_copy += u64::from(refused && !used_next);
        // A present key that is refused leaves the next one.
        self.next_unknown = (self.next_unknown && !refused) || falls_back;
        falls_back
    }

    pub fn welcomed(&mut self) {
        if !self.next_unknown
            && let Some(next) = self.next.take()
        {
            self.present = next;
            self.counts.changed += 1;
        }
        (self.next_unknown, self.is_announced, self.is_stored) = (false, false, false);
    }

    pub fn lost(&mut self) {
        let between = self.is_announced && self.next.is_some();
        self.counts.interrupted += u64::from(between);
        self.counts.stored_before += u64::from(between && self.is_stored);
        (self.is_announced, self.is_stored) = (false, false);
    }

    /// The announcement of the next key, which is made if there is none; none if this stream had it.
    pub fn asked(&mut self, agent: &str, nonce: &[u8]) -> Result<Option<NewKey>> {
        if self.next.is_none() {
            self.next = Some(Key::new(Identity::self_signed("next")?)?);
        }
        self.announcement(agent, nonce)
    }

    /// The announcement of the next key, if there is one and this stream had none.
    pub fn announcement(&mut self, agent: &str, nonce: &[u8]) -> Result<Option<NewKey>> {
        let next = self.next.as_ref().filter(|_| !self.is_announced);
        let announced = next.map(|next| new_key(agent, nonce, &next.identity));
        let announced = announced.transpose()?;
        self.is_announced |= announced.is_some();
        self.counts.announced += u64::from(announced.is_some());
        Ok(announced)
    }

    /// Returns when to connect with the next key, if it is stored: not all agents at once.
    pub fn stored(&mut self, stored: &KeyStored) -> Option<Duration> {
        let hash = key_hash(&self.next.as_ref()?.identity).ok()?;
        if hash[..] != stored.key {
            return None;
        }
        if !stored.refused.is_empty() {
            self.next = None;
            self.counts.refused += 1;
            return None;
        }
        self.is_stored = true;
        Some(Duration::from_millis(rand::random_range(0..500)))
    }
}

fn is_of_key(reason: &str) -> bool {
    ["KEY_MISMATCH", "RETIRED_KEY"].contains(&reason)
}

/// A place for a connection that no fault has caused, or when to ask again.
pub(super) fn place() -> Result<SemaphorePermit<'static>, Duration> {
    let later = || Duration::from_millis(rand::random_range(50..250));
    CONNECTING.try_acquire().map_err(|_| later())
}
