//! `Register`: the call that admits an agent. It stays open while an administrator
//! decides.

use std::time::Duration;

use svc_proto::v1::{AgentStatus, RegisterRequest, RegisterResponse};
use tokio::time::timeout;
use tonic::Streaming;

use super::{CallFailure, Connection, Credential};

/// The status of an agent's registration, as the service reports it.
#[derive(Clone, Debug)]
pub enum RegistrationStatus {
    /// An administrator decides; the decision arrives on the same call.
    Pending {
        agent_id: String,
        message: String,
    },
    Active {
        agent_id: String,
        credential: Credential,
    },
    Rejected {
        agent_id: String,
        message: String,
    },
    Revoked {
        agent_id: String,
        message: String,
    },
}

/// An open `Register` call. It owns its connection.
#[derive(Debug)]
pub struct RegisterCall {
    answers: Streaming<RegisterResponse>,
    _connection: Connection,
}

impl RegisterCall {
    /// Sends the request, and returns with the first status. An endpoint that keeps the
    /// connection alive and never answers is given up after `deadline`.
    pub async fn open(
        connection: Connection,
        request: RegisterRequest,
        deadline: Duration,
    ) -> Result<(Self, RegistrationStatus), CallFailure> {
        let late = |_| CallFailure::lost("the service did not answer the registration in time");
        let opening = Self::first_status(connection, request);
        timeout(deadline, opening).await.map_err(late)?
    }

    async fn first_status(
        mut connection: Connection,
        request: RegisterRequest,
    ) -> Result<(Self, RegistrationStatus), CallFailure> {
        let answers = connection.client.register(request).await?.into_inner();
        let mut call = Self {
            answers,
            _connection: connection,
        };
        let status = call.status().await?;
        Ok((call, status))
    }

    /// The next status. It arrives when an administrator has decided, so it may take days.
    pub async fn status(&mut self) -> Result<RegistrationStatus, CallFailure> {
        match self.answers.message().await? {
            Some(response) => registration_status(response),
            None => Err(CallFailure::lost("the call ended without a decision")),
        }
    }
}

fn registration_status(response: RegisterResponse) -> Result<RegistrationStatus, CallFailure> {
    use RegistrationStatus::{Active, Pending, Rejected, Revoked};
    let status = response.status();
    let (agent_id, message) = (response.agent_id, response.message);
    match (status, response.credential) {
        (AgentStatus::Pending, _) => Ok(Pending { agent_id, message }),
        (AgentStatus::Rejected, _) => Ok(Rejected { agent_id, message }),
        (AgentStatus::Revoked, _) => Ok(Revoked { agent_id, message }),
        (AgentStatus::Active, Some(credential)) => Ok(Active {
            agent_id,
            credential: credential.into(),
        }),
        (AgentStatus::Active, None) => Err(CallFailure::lost("ACTIVE arrived without a JWT")),
        (AgentStatus::Unspecified, _) => Err(CallFailure::lost(
            "the service sent a status that this agent does not know",
        )),
    }
}
