//! A clone of another machine's disk takes a key of its own.
//!
//! Two machines with one key are one agent to the service, and would fight for one
//! stream and one sequence of numbers. The service notices that the key is live on two
//! machines and refuses one of them with IDENTITY_IN_USE. Often the clone knows by itself,
//! because its machine is not the one that the key was bound to (`State::bind`). That agent
//! creates a successor key, registers its hash over the old key, which proves where it comes
//! from, and then continues as a new agent, which a token or an administrator admits. The
//! old key is set aside.
//!
//! The agent may be stopped between any two steps. The order makes each of them safe:
//!
//! 1. `successor.pem` is on disk before the service learns of the key. A restart finds
//!    the file and repeats the registration with the same key, which the service answers
//!    in the same way. Otherwise each attempt would leave another pending agent behind.
//! 2. The state of the old key (its JWT, above all) is discarded before the files are
//!    renamed. A restart at this point still has the old key and `successor.pem`, and
//!    repeats step 1.
//! 3. `identity.pem` is set aside, and `successor.pem` takes its name. A restart between
//!    the two renames finds no `identity.pem`, and completes the second one
//!    (`identity` in `agent.rs`).
//!
//! A next key (`keys`) belongs to the origin too, and is deleted before the files are renamed. The samples of the old key are not sent: their numbers belong to the origin's agent. They
//! and the old key are deleted when the new key is admitted.

use std::sync::Arc;

use jiff::Timestamp;
use svc_proto::contract::Action;

use super::{Agent, AgentError, Next};
use crate::{
    caller::CallError,
    data_dir::{IDENTITY, NEXT_IDENTITY, SUCCESSOR, short},
    identity::Identity,
    spool::Spool,
    state::{Machine, State},
};

impl Agent {
    pub(super) async fn take_successor(&mut self) -> Result<Next, AgentError> {
        if self.config.client_pair.is_some() {
            return Ok(self.cannot_change_key());
        }
        let successor = self.successor()?;
        let stop = self.stop.clone();
        let registered = stop.run_until_cancelled(self.register_successor(&successor));
        match registered.await {
            None => Ok(Next::Stop),
            Some(Ok(())) => self.change_key(successor, true),
            Some(Err(error)) if self.falls_back(&error) => Ok(Next::Continue),
            // The origin is not active any more, so it cannot vouch for a successor: the
            // new key needs a token like any other.
            Some(Err(CallError::Failed(failure))) if failure.action == Action::Defect => {
                self.change_key(successor, false)
            }
            Some(Err(error)) => Ok(self.after_failure(&error)),
        }
    }

    /// The key of an interrupted attempt, or a new one.
    fn successor(&self) -> Result<Identity, AgentError> {
        if let Some(text) = self.dir.read(SUCCESSOR)? {
            return Ok(Identity::from_pem(&text, SUCCESSOR)?);
        }
        let (successor, text) = Identity::generate_with_pem(Timestamp::now(), None)?;
        self.dir.write(SUCCESSOR, &text)?;
        Ok(successor)
    }

    async fn register_successor(&self, successor: &Identity) -> Result<(), CallError> {
        let mut request = self.caller.request(String::new());
        request.successor_key = successor.key_hash().to_vec();
        let address = self.addresses.current();
        self.caller.register(address, request).await?;
        Ok(())
    }

    fn change_key(&mut self, successor: Identity, is_successor: bool) -> Result<Next, AgentError> {
        let (former, new) = (
            self.caller.identity().fingerprint(),
            successor.fingerprint(),
        );
        self.recorder.flush(); // It must not write the old state after the new one.
        self.dir.remove(NEXT_IDENTITY)?;
        let cell = self.state.cell.take();
        self.state = State::of_new_key(is_successor, Machine::of(&self.caller.facts()));
        self.state.cell = cell;
        self.highest_sent = 0;
        self.state.save(&self.dir)?;
        self.dir
            .rename(IDENTITY, &format!("former-{}.pem", short(&former)))?;
        self.dir.rename(SUCCESSOR, IDENTITY)?;
        let spool = Spool::open(
            &self.dir.spool(&new),
            self.settings.spool(self.config.spool),
        )?;
        self.recorder.replace_spool(spool);
        self.sample(|sampling| sampling.on = false);
        tracing::warn!(
            key = short(&new),
            former_key = short(&former),
            "this clone has its own key now"
        );
        self.board.change(|status| {
            status.fingerprint.clone_from(&new);
            status.agent_id = None;
        });
        let successor = Arc::new(successor);
        self.keys.become_new(successor.clone());
        self.caller = self.caller.with_identity(successor);
        (self.is_clone, self.noticed, self.refused_since) = (false, None, None);
        self.backoff.reset();
        Ok(Next::Continue)
    }

    /// Deletes what is left of former keys, once the present one is admitted.
    pub(super) fn delete_former(&self) {
        let spool = self.keys.present.spool();
        if let Err(error) = self.dir.delete_former(&spool) {
            tracing::warn!(%error, "what is left of a former key could not be deleted");
        }
    }

    fn cannot_change_key(&mut self) -> Next {
        self.is_clone = false;
        let wait = self.timing.refused;
        tracing::error!(
            retry_in = ?wait,
            "another machine uses this machine's client_cert_file: give this machine its own certificate and key"
        );
        Next::Wait(wait)
    }
}
