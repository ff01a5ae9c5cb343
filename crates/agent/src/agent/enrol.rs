//! Registration: one `Register` call, which stays open until an administrator has
//! decided.

use std::path::Path;

use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{Agent, Next};
use crate::{
    caller::CallError,
    config::{Token, read_token, token_in},
    data_dir::short,
    status::Enrolment,
    wire::{CallFailure, Credential, RegisterCall, Registration, RegistrationStatus},
};

impl Agent {
    pub(super) async fn enrol(&mut self) -> Next {
        let stop = self.stop.clone();
        let answer = match stop.run_until_cancelled(self.register()).await {
            None => return Next::Stop,
            Some(Err(error)) => return self.after_failure(&error),
            Some(Ok(answer)) => answer,
        };
        let Registration {
            agent_id,
            message,
            status,
            move_to,
        } = answer;
        if let Some(order) = move_to
            && let Some(next) = self.register_elsewhere(&order).await
        {
            return next;
        }
        match status {
            RegistrationStatus::Pending => Next::Continue,
            RegistrationStatus::Active(credential) => self.admitted(agent_id, &credential),
            RegistrationStatus::Rejected => {
                self.not_admitted(Enrolment::Rejected, &agent_id, &message)
            }
            RegistrationStatus::Revoked => {
                self.not_admitted(Enrolment::Revoked, &agent_id, &message)
            }
        }
    }

    /// Returns the first answer that is not PENDING.
    async fn register(&mut self) -> Result<Registration, CallError> {
        let address = self.addresses.current().clone();
        let request = self.caller.request(self.token());
        let (mut call, first) = self.caller.register(&address, request).await?;
        let opened = Instant::now();
        let decision = self.decision(&mut call, first).await;
        self.reset_backoff_if_settled(opened);
        decision
    }

    async fn decision(
        &mut self,
        call: &mut RegisterCall,
        mut answer: Registration,
    ) -> Result<Registration, CallError> {
        if self.state.other_cell.is_some()
            && !matches!(answer.status, RegistrationStatus::Active(_))
        {
            self.ask_elsewhere();
            return Err(CallFailure::lost(
                "it does not admit this agent, whose cell is another one",
            )
            .into());
        }
        while matches!(answer.status, RegistrationStatus::Pending) {
            self.pending(&answer.agent_id, &answer.message);
            answer = call.answer().await?;
        }
        Ok(answer)
    }

    /// A successor key has its place already and needs no token, but a valid one admits it
    /// like any new machine.
    /// A next key has its agent already, and must not become another one.
    fn token(&self) -> String {
        if self.uses_next_key() {
            return String::new();
        }
        match &self.config.token {
            Token::None => String::new(),
            Token::Given(token) => token.expose_secret().to_owned(),
            Token::Setting(path) => known(path, token_in(path)),
            Token::File(path) => known(path, read_token(path)),
        }
    }

    /// Logs each message once, however often the call is repeated.
    fn pending(&mut self, agent_id: &str, message: &str) {
        let fingerprint = self.caller.identity().fingerprint();
        let known = self.state.agent_id.as_deref() == Some(agent_id);
        self.state.agent_id = Some(agent_id.to_owned());
        self.connected();
        let is_new = self.set_enrolment(Enrolment::Pending, message);
        if is_new || !known {
            tracing::info!(
                agent.id = agent_id,
                key = short(&fingerprint),
                fingerprint,
                message,
                "waiting for approval: an administrator compares the key and runs the command"
            );
        }
    }

    pub(super) fn admitted(&mut self, agent_id: String, credential: &Credential) -> Next {
        tracing::info!(agent.id = agent_id, "this agent is admitted");
        self.refused_since = None;
        self.delete_former();
        self.state.agent_id = Some(agent_id);
        self.take_credential(credential);
        self.set_enrolment(Enrolment::Active, "");
        self.sample(|sampling| sampling.on = true);
        Next::Continue
    }

    /// Only an administrator can change the decision, so the agent asks rarely. It takes
    /// no samples meanwhile.
    fn not_admitted(&mut self, enrolment: Enrolment, agent_id: &str, message: &str) -> Next {
        self.set_enrolment(enrolment, message);
        self.refused();
        self.sample(|sampling| sampling.on = false);
        let wait = self.timing.refused;
        tracing::warn!(
            agent.id = agent_id, message, retry_in = ?wait,
            "this agent is not admitted: asking again later"
        );
        Next::Wait(wait)
    }

    /// Returns whether the status or its message changed.
    fn set_enrolment(&self, enrolment: Enrolment, message: &str) -> bool {
        let message = Some(message.to_owned()).filter(|message| !message.is_empty());
        let agent_id = self.state.agent_id.clone();
        let mut is_new = false;
        self.board.change(|status| {
            is_new = status.enrolment != enrolment || status.message != message;
            (status.enrolment, status.message) = (enrolment, message);
            status.agent_id = agent_id;
            status.connection.error = None;
        });
        is_new
    }
}

fn known(path: &Path, token: Result<String, String>) -> String {
    token.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "the enrolment token cannot be read");
        String::new()
    })
}
