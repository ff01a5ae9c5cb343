//! Until the service admits this key: register, wait on the call while a person
//! decides, and say in the log what is waited for.

use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::{Agent, Step};
use crate::{
    caller::CallError,
    config::Token,
    data_dir::short,
    status::Enrolment,
    wire::{Credential, Registering, Standing, register},
};

impl Agent {
    pub(super) async fn enrol(&mut self) -> Step {
        let stop = self.stop.clone();
        let asked = stop.run_until_cancelled(self.ask()).await;
        match asked {
            None => Step::Stopped,
            Some(Err(error)) => self.after(&error),
            Some(Ok(Standing::Active {
                agent_id,
                credential,
            })) => self.admitted(agent_id, &credential),
            Some(Ok(standing)) => self.turned_away(standing),
        }
    }

    /// One call, until it is decided.
    async fn ask(&mut self) -> Result<Standing, CallError> {
        let Some(address) = self.addresses.current().cloned() else {
            return std::future::pending().await;
        };
        let connection = self.caller.connect(&address).await?;
        let request = self.caller.request(self.token());
        let mut call = register(connection, request).await?;
        let opened = Instant::now();
        let decision = self.decision(&mut call).await;
        self.lived_since(opened);
        decision
    }

    async fn decision(&mut self, call: &mut Registering) -> Result<Standing, CallError> {
        loop {
            match call.answer().await? {
                Standing::Pending { agent_id, message } => self.waits(&agent_id, &message),
                decided => return Ok(decided),
            }
        }
    }

    /// A key that has its place already needs no token, and none may speak for it.
    fn token(&self) -> String {
        if self.state.placed {
            return String::new();
        }
        match &self.config.token {
            Token::None => String::new(),
            Token::Given(token) => token.expose_secret().to_owned(),
            Token::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => text.trim().to_owned(),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the enrolment token's file cannot be read");
                    String::new()
                }
            },
        }
    }

    /// Said once for each thing that is waited for, however often the call is repeated.
    fn waits(&mut self, agent_id: &str, message: &str) {
        let fingerprint = self.caller.identity().fingerprint();
        let known = self.state.agent_id.as_deref() == Some(agent_id);
        self.state.agent_id = Some(agent_id.to_owned());
        self.connected();
        let news = self.stands(Enrolment::Pending, message);
        if news || !known {
            tracing::info!(
                agent.id = agent_id,
                key = short(&fingerprint),
                fingerprint,
                message,
                "waiting for approval: an administrator compares the key and runs the command"
            );
        }
    }

    fn admitted(&mut self, agent_id: String, credential: &Credential) -> Step {
        tracing::info!(agent.id = agent_id, "this agent is admitted");
        self.state.agent_id = Some(agent_id);
        self.take_credential(credential);
        self.stands(Enrolment::Active, "");
        self.sample(|sampling| sampling.on = true);
        Step::Go
    }

    /// Only a person can change it: it is asked for once an hour, and nothing is measured.
    fn turned_away(&mut self, standing: Standing) -> Step {
        let (enrolment, agent_id, message) = match standing {
            Standing::Rejected { agent_id, message } => (Enrolment::Rejected, agent_id, message),
            Standing::Revoked { agent_id, message } => (Enrolment::Revoked, agent_id, message),
            Standing::Pending { .. } | Standing::Active { .. } => return Step::Go,
        };
        self.stands(enrolment, &message);
        self.sample(|sampling| sampling.on = false);
        let wait = self.timing.refused;
        tracing::warn!(
            agent.id = agent_id, message, retry_in = ?wait,
            "this agent is not admitted: asking again later"
        );
        Step::Wait(wait)
    }

    /// Whether that is news.
    fn stands(&self, enrolment: Enrolment, message: &str) -> bool {
        let message = Some(message.to_owned()).filter(|message| !message.is_empty());
        let agent_id = self.state.agent_id.clone();
        let mut news = false;
        self.board.change(|status| {
            news = status.enrolment != enrolment || status.message != message;
            (status.enrolment, status.message) = (enrolment, message);
            status.agent_id = agent_id;
            status.connection.error = None;
        });
        news
    }
}
