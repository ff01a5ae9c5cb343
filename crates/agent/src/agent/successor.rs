//! A copy of another machine's disk takes a key of its own: the old key speaks once
//! more, to ask for a place for the new one, and is set aside.
//!
//! Every step may be interrupted. The new key is on disk before the service hears of
//! it, the service answers a repeated question alike, and the files change their names
//! last; a start that finds a successor goes on where the last one ended.

use super::{Agent, AgentError, Step};
use crate::{
    caller::CallError,
    data_dir::{DataDirError, IDENTITY, SUCCESSOR, short},
    identity::Identity,
    spool::Spool,
    state::State,
    wire::{Reason, register},
};

impl Agent {
    pub(super) async fn take_successor(&mut self) -> Result<Step, AgentError> {
        if self.config.client_pair.is_some() {
            return Ok(self.cannot_change_its_key());
        }
        let successor = self.successor()?;
        let stop = self.stop.clone();
        let asked = stop.run_until_cancelled(self.ask_for_a_place(&successor));
        match asked.await {
            None => Ok(Step::Stopped),
            Some(Ok(())) => self.change_key(successor, true),
            // The origin is not active any more: the new key needs a token like any other.
            Some(Err(CallError::Refused(refusal))) if refusal.reason == Reason::Misunderstood => {
                self.change_key(successor, false)
            }
            Some(Err(error)) => Ok(self.after(&error)),
        }
    }

    /// The one that an interrupted attempt has left, or a new one.
    fn successor(&self) -> Result<Identity, AgentError> {
        if let Some(text) = self.dir.read(SUCCESSOR)? {
            return Ok(Identity::from_pem(&text, SUCCESSOR)?);
        }
        let (successor, text) = Identity::generate_with_pem()?;
        self.dir.write(SUCCESSOR, &text)?;
        Ok(successor)
    }

    async fn ask_for_a_place(&self, successor: &Identity) -> Result<(), CallError> {
        let Some(address) = self.addresses.current() else {
            return std::future::pending().await;
        };
        let connection = self.caller.connect(address).await?;
        let mut request = self.caller.request(String::new());
        request.successor_key = successor.key_hash().to_vec();
        register(connection, request).await?.answer().await?;
        Ok(())
    }

    /// Samples that were taken under the old key are the origin's numbers: they go with it.
    fn change_key(&mut self, successor: Identity, placed: bool) -> Result<Step, AgentError> {
        let (former, new) = (
            self.caller.identity().fingerprint(),
            successor.fingerprint(),
        );
        self.state = State::of_new_key(placed);
        self.state.save(&self.dir)?;
        self.dir
            .rename(IDENTITY, &format!("former-{}.pem", short(&former)))?;
        self.dir.rename(SUCCESSOR, IDENTITY)?;
        let spool = Spool::open(&self.dir.spool(&new), self.config.spool)?;
        self.record.begin_anew(spool);
        self.sample(|sampling| sampling.on = false);
        self.forget_samples(&former);
        tracing::warn!(
            key = short(&new),
            former_key = short(&former),
            "this copy has a key of its own now"
        );
        self.board.change(|status| {
            status.fingerprint.clone_from(&new);
            status.agent_id = None;
        });
        self.caller = self.caller.with_identity(successor);
        (self.is_copy, self.noticed) = (false, None);
        self.backoff.reset();
        Ok(Step::Go)
    }

    fn forget_samples(&self, fingerprint: &str) {
        let path = self.dir.spool(fingerprint);
        if let Err(source) = std::fs::remove_dir_all(&path) {
            let error = DataDirError::Io { path, source };
            tracing::warn!(%error, "the origin's samples could not be removed");
        }
    }

    fn cannot_change_its_key(&mut self) -> Step {
        self.is_copy = false;
        let wait = self.timing.refused;
        tracing::error!(
            retry_in = ?wait,
            "this machine's client_cert_file is in use on another one: give it a certificate and a key of its own"
        );
        Step::Wait(wait)
    }
}
