//! Changes of the agent's key: by its age, or because the service asks for one.
//!
//! The agent makes the next key beside the present one, announces it on its stream with a proof that it holds it, and connects
//! with it once the service has stored it. The first welcome over the next key makes it the agent's key, and retires the other.
//!
//! The agent may be stopped between any two steps, and any answer may be lost. This is safe, because of two rules:
//!
//! 1. `identity.next.pem` is on disk before the service learns of the key, and replaces `identity.pem` by one rename, after
//!    the service has welcomed it. Until then both files are there, so the valid key is never lost.
//! 2. While there is a next key, a start uses it first. If the service does not know it, or has retired it (an old disk was
//!    restored), the agent uses the present one, and the other way round: one more handshake, then it waits as after any
//!    failure. A welcome over the present key shows that the next one was never used, so it is announced again.
//!
//! A next key registers without a token: one that the service does not know must not become a second agent.
//!
//! Samples and their numbers belong to the agent. Their folder is named after its first key, and each key file names it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use svc_proto::{
    contract::{Action, Reason, new_key::signed_bytes},
    v1::{KeyStored, NewKey, Welcome},
};

use super::{Agent, AgentError};
use crate::{
    caller::CallError,
    config::Config,
    data_dir::{DataDir, IDENTITY, NEXT_IDENTITY, short},
    identity::Identity,
    wire::system_time,
};

#[derive(Debug)]
pub(super) struct Keys {
    pub(super) present: Arc<Identity>,
    next: Option<Arc<Identity>>,
    /// When the present key was made, by its file.
    made: Option<Timestamp>,
    /// `None`: the agent changes its key only if the service asks.
    age: Option<Duration>,
    /// The key is of the site's own PKI, and not the agent's to change.
    foreign: bool,
}

/// What a new key is announced with on a stream.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    agent: Option<[u8; 16]>,
    nonce: Vec<u8>,
    server_time: Option<Timestamp>,
}

impl Greeting {
    pub(super) fn of(welcome: &Welcome) -> Self {
        let id = u128::from_str_radix(&welcome.agent_id.replace('-', ""), 16);
        let time = system_time(welcome.server_time);
        Self {
            agent: id.ok().map(u128::to_be_bytes),
            nonce: welcome.nonce.clone(),
            server_time: time.and_then(|time| Timestamp::try_from(time).ok()),
        }
    }
}

impl Keys {
    pub(super) fn open(
        dir: &DataDir,
        config: &Config,
        present: Identity,
    ) -> Result<Self, AgentError> {
        let foreign = config.client_pair.is_some();
        let text = match foreign {
            true => None,
            false => dir.read(NEXT_IDENTITY)?,
        };
        let next = text.and_then(|text| {
            let damaged = |error| tracing::warn!(%error, "the next key is damaged");
            let next = Identity::from_pem(&text, NEXT_IDENTITY).map_err(damaged);
            next.ok().map(Arc::new)
        });
        Ok(Self {
            made: present.made().or_else(|| dir.modified(IDENTITY)),
            present: Arc::new(present),
            next,
            age: config.key_age,
            foreign,
        })
    }

    /// The only key of an agent that has just begun.
    pub(super) fn become_new(&mut self, key: Arc<Identity>) {
        (self.made, self.present, self.next) = (key.made(), key, None);
    }

    /// The key to try first.
    pub(super) fn first(&self) -> Arc<Identity> {
        self.next.as_ref().unwrap_or(&self.present).clone()
    }

    /// Each key gets older than its fellows by up to a fifth, so that a fleet that was installed at once does not change at once.
    fn is_old(&self, now: Option<Timestamp>) -> bool {
        let (Some(age), Some(made), Some(now)) = (self.age, self.made, now) else {
            return false;
        };
        let share = f64::from(self.present.key_hash()[0]) / 255.0;
        let due = age.mul_f64(0.9 + 0.2 * share);
        Duration::try_from(now.duration_since(made)).is_ok_and(|present| present >= due)
    }
}

impl Agent {
    pub(super) fn uses_next_key(&self) -> bool {
        let used = self.caller.identity().key_hash();
        let next = self.keys.next.as_ref();
        next.is_some_and(|next| next.key_hash() == used)
    }

    /// Whether the service refused the next key, and the present one can be tried at once. If it refused the present one, the
    /// next one is tried after the wait.
    pub(super) fn falls_back(&mut self, error: &CallError) -> bool {
        let (CallError::Failed(failure), Some(next)) = (error, &self.keys.next) else {
            return false;
        };
        let is_unknown = failure.is(Reason::KeyMismatch)
            || failure.is(Reason::RetiredKey)
            || matches!(failure.action, Action::NewToken | Action::Defect);
        let next = next.clone();
        match is_unknown {
            false => false,
            true if self.uses_next_key() => {
                tracing::info!(%error, "the next key is not known to the service: using the present one");
                self.use_key(self.keys.present.clone());
                true
            }
            true => {
                self.use_key(next);
                false
            }
        }
    }

    fn use_key(&mut self, key: Arc<Identity>) {
        let fingerprint = key.fingerprint();
        self.board.change(|status| status.fingerprint = fingerprint);
        self.caller = self.caller.with_identity(key);
    }

    /// What a welcome means for the keys. Returns a new key to announce.
    pub(super) fn key_welcomed(&mut self, greeting: &Greeting) -> Option<NewKey> {
        if self.uses_next_key() {
            self.adopt();
            return None;
        }
        let due = self.keys.next.is_some() || self.keys.is_old(greeting.server_time);
        due.then(|| self.announce(greeting)).flatten()
    }

    fn adopt(&mut self) {
        if let Err(error) = self.dir.rename(NEXT_IDENTITY, IDENTITY) {
            tracing::warn!(%error, "the new key is valid, but its file could not replace the old one: trying again later");
            return;
        }
        if let Some(next) = self.keys.next.take() {
            let (key, former_key) = (next.fingerprint(), self.keys.present.fingerprint());
            tracing::info!(
                key = short(&key),
                former_key = short(&former_key),
                "this agent has a new key"
            );
            self.keys.become_new(next);
        }
    }

    /// The announcement of the next key, which is made if there is none. A failure leaves the present key as it is.
    pub(super) fn announce(&mut self, greeting: &Greeting) -> Option<NewKey> {
        let agent = greeting.agent.filter(|_| !greeting.nonce.is_empty())?;
        if self.keys.foreign {
            tracing::warn!("this agent's key is client_key_file: only you can change it");
            return None;
        }
        if self.uses_next_key() || self.recorder.problem().is_some() {
            return None; // The key was just changed, or the disk may not keep another one.
        }
        let next = match &self.keys.next {
            Some(next) => next.clone(),
            None => {
                let made = self.make(greeting.server_time);
                let failed = |error: &AgentError| tracing::warn!(%error, "no new key was made");
                made.inspect_err(failed).ok()?
            }
        };
        let signed = signed_bytes(agent, &greeting.nonce, &next.key_hash());
        let announced = next.sign(&signed).map(|signature| NewKey {
            spki: next.spki(),
            signature,
        });
        self.keys.next = Some(next);
        announced
    }

    fn make(&self, now: Option<Timestamp>) -> Result<Arc<Identity>, AgentError> {
        let made = now.unwrap_or_else(Timestamp::now);
        let spool = self.keys.present.spool();
        let (next, text) = Identity::generate_with_pem(made, Some(&spool))?;
        self.dir.write(NEXT_IDENTITY, &text)?;
        Ok(Arc::new(next))
    }

    /// Whether the next key is stored, so that the agent connects with it from now on.
    pub(super) fn key_stored(&mut self, stored: &KeyStored) -> bool {
        let is_stored = |next: &Arc<Identity>| next.key_hash()[..] == stored.key;
        let Some(next) = self.keys.next.clone().filter(is_stored) else {
            return false;
        };
        if !stored.refused.is_empty() {
            tracing::warn!(reason = stored.refused, "the service refused the new key");
            self.discard_next_key();
            return false;
        }
        self.use_key(next);
        true
    }

    /// The next key was never used.
    pub(super) fn discard_next_key(&mut self) {
        match self.dir.remove(NEXT_IDENTITY) {
            Ok(()) => self.keys.next = None,
            Err(error) => tracing::warn!(%error, "the next key could not be deleted"),
        }
    }
}
