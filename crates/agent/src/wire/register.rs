//! `Register`: the call that admits an agent. It stays open while an administrator
//! decides.

use std::time::Duration;

use svc_proto::v1::{AgentStatus, Move, RegisterRequest, RegisterResponse};
use tokio::time::timeout;
use tonic::Streaming;

use super::{CallFailure, Connection, Credential};

/// The answer to a registration.
#[derive(Clone, Debug)]
pub struct Registration {
    pub agent_id: String,
    /// What follows, for people.
    pub message: String,
    pub status: RegistrationStatus,
    /// Where the agent belongs, if not here.
    pub move_to: Option<Move>,
}

#[derive(Clone, Debug)]
pub enum RegistrationStatus {
    /// An administrator decides; the decision arrives on the same call.
    Pending,
    Active(Credential),
    Rejected,
    Revoked,
}

/// An open `Register` call. It owns its connection.
#[derive(Debug)]
pub struct RegisterCall {
    answers: Streaming<RegisterResponse>,
    _connection: Connection,
}

impl RegisterCall {
    /// Sends the request, and returns with the first answer. An endpoint that keeps the
    /// connection alive and never answers is given up after `deadline`.
    pub async fn open(
        connection: Connection,
        request: RegisterRequest,
        deadline: Duration,
    ) -> Result<(Self, Registration), CallFailure> {
        let late = |_| CallFailure::lost("the service did not answer the registration in time");
        let opening = Self::first_answer(connection, request);
        timeout(deadline, opening).await.map_err(late)?
    }

    async fn first_answer(
        mut connection: Connection,
        request: RegisterRequest,
    ) -> Result<(Self, Registration), CallFailure> {
        let answers = connection.client.register(request).await?.into_inner();
        let mut call = Self {
            answers,
            _connection: connection,
        };
        let answer = call.answer().await?;
        Ok((call, answer))
    }

    /// The next answer. It arrives when an administrator has decided, so it may take days.
    pub async fn answer(&mut self) -> Result<Registration, CallFailure> {
        match self.answers.message().await? {
            Some(response) => registration(response),
            None => Err(CallFailure::lost("the call ended without a decision")),
        }
    }
}

fn registration(response: RegisterResponse) -> Result<Registration, CallFailure> {
    use RegistrationStatus::{Active, Pending, Rejected, Revoked};
    let status = match (response.status(), response.credential) {
        (AgentStatus::Pending, _) => Pending,
        (AgentStatus::Rejected, _) => Rejected,
        (AgentStatus::Revoked, _) => Revoked,
        (AgentStatus::Active, Some(credential)) => Active(credential.into()),
        (AgentStatus::Active, None) => {
            return Err(CallFailure::lost("ACTIVE arrived without a JWT"));
        }
        (AgentStatus::Unspecified, _) => {
            let unknown = "the service sent a status that this agent does not know";
            return Err(CallFailure::lost(unknown));
        }
    };
    Ok(Registration {
        agent_id: response.agent_id,
        message: response.message,
        status,
        move_to: response.move_to,
    })
}
