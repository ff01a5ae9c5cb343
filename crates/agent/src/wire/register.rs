//! `Register`: the call that an agent begins with, and waits on while a person
//! decides.

use std::time::SystemTime;

use secrecy::SecretString;
use svc_proto::v1::{AgentStatus, RegisterRequest, RegisterResponse};
use tonic::Streaming;

use super::{Connection, Refusal};

/// A JWT, and until when it is good.
#[derive(Clone, Debug)]
pub struct Credential {
    pub jwt: SecretString,
    pub expires_at: Option<SystemTime>,
}

impl From<svc_proto::v1::Credential> for Credential {
    fn from(credential: svc_proto::v1::Credential) -> Self {
        let expires_at = credential.expires_at;
        Self {
            jwt: credential.jwt.into(),
            expires_at: expires_at.and_then(|at| SystemTime::try_from(at).ok()),
        }
    }
}

/// Where the service says that an agent stands.
#[derive(Clone, Debug)]
pub enum Standing {
    /// A person decides; the answer comes on the same call.
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

/// A call under way. The connection goes with it.
#[derive(Debug)]
pub struct Registering {
    answers: Streaming<RegisterResponse>,
    _connection: Connection,
}

pub async fn register(
    mut connection: Connection,
    request: RegisterRequest,
) -> Result<Registering, Refusal> {
    let answers = connection.client.register(request).await?.into_inner();
    Ok(Registering {
        answers,
        _connection: connection,
    })
}

impl Registering {
    /// The next answer; the first comes at once.
    pub async fn answer(&mut self) -> Result<Standing, Refusal> {
        match self.answers.message().await? {
            Some(response) => standing(response),
            None => Err(Refusal::lost("the call ended without a decision")),
        }
    }
}

fn standing(response: RegisterResponse) -> Result<Standing, Refusal> {
    let status = response.status();
    let (agent_id, message) = (response.agent_id, response.message);
    match (status, response.credential) {
        (AgentStatus::Pending, _) => Ok(Standing::Pending { agent_id, message }),
        (AgentStatus::Rejected, _) => Ok(Standing::Rejected { agent_id, message }),
        (AgentStatus::Revoked, _) => Ok(Standing::Revoked { agent_id, message }),
        (AgentStatus::Active, Some(credential)) => Ok(Standing::Active {
            agent_id,
            credential: credential.into(),
        }),
        (AgentStatus::Active, None) => Err(Refusal::lost("ACTIVE came without a JWT")),
        (AgentStatus::Unspecified, _) => Err(Refusal::lost(
            "the service named a standing that is not known here",
        )),
    }
}
