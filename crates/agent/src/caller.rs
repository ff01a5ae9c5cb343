//! Who calls the service: a key, a trust, and what the machine says of itself.
//!
//! Certificate files are read for every connection, so that renewed ones are used
//! without a restart.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use svc_proto::v1::{AgentInfo, Hello, HostFacts, RegisterRequest, Welcome};

use crate::{
    clock::Clock,
    config::{ClientPair, Config},
    facts,
    identity::{Identity, IdentityError},
    release::VERSION,
    spool::SpoolError,
    trust::{Trust, TrustError},
    wire::{
        Address, ConnectError, Connection, Connector, Credential, Patience, Refusal, Stream, greet,
    },
};

/// What a machine is recognised by: asked anew for each connection, or said by a test.
#[derive(Clone, Debug, Default)]
pub enum Facts {
    #[default]
    OfThisMachine,
    Given(Box<HostFacts>),
}

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What is to be said cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

impl CallError {
    /// When to come back, by the service.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            _ => None,
        }
    }
}

/// Everything that a call needs, to be cloned into it.
#[derive(Clone, Debug)]
pub struct Caller {
    identity: Arc<Identity>,
    client_pair: Option<ClientPair>,
    ca_cert_file: Option<PathBuf>,
    patience: Patience,
    facts: Facts,
    clock: Clock,
    run_id: String,
}

impl Caller {
    pub fn new(
        config: &Config,
        identity: Identity,
        facts: Facts,
        clock: Clock,
        patience: Patience,
    ) -> Self {
        Self {
            identity: Arc::new(identity),
            client_pair: config.client_pair.clone(),
            ca_cert_file: config.ca_cert_file.clone(),
            patience,
            facts,
            clock,
            run_id: format!("{:032x}", rand::random::<u128>()),
        }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The same machine and run under another key.
    pub fn with_identity(&self, identity: Identity) -> Self {
        Self {
            identity: Arc::new(identity),
            ..self.clone()
        }
    }

    pub async fn connect(&self, address: &Address) -> Result<Connection, CallError> {
        let trust = Trust::load(self.ca_cert_file.as_deref())?;
        let tls = match &self.client_pair {
            None => trust.client(&self.identity)?,
            Some(pair) => trust.client(&Identity::from_files(pair)?)?,
        };
        let connector = Connector::new(Arc::new(tls), self.patience);
        Ok(connector.connect(address).await?)
    }

    /// A connection, and a welcomed stream on it.
    pub async fn open(
        &self,
        address: &Address,
        credential: &Credential,
    ) -> Result<(Stream, Welcome), CallError> {
        let connection = self.connect(address).await?;
        Ok(greet(connection, credential, self.hello()).await?)
    }

    pub fn request(&self, enrolment_token: String) -> RegisterRequest {
        RegisterRequest {
            enrolment_token,
            host: Some(self.facts()),
            agent: Some(agent_info()),
            successor_key: Vec::new(),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            agent: Some(agent_info()),
            host: Some(self.facts()),
            run_id: self.run_id.clone(),
            sent_at: Some(SystemTime::into(self.clock.wall())),
        }
    }

    pub fn facts(&self) -> HostFacts {
        match &self.facts {
            Facts::OfThisMachine => facts::gather(),
            Facts::Given(facts) => (**facts).clone(),
        }
    }
}

fn agent_info() -> AgentInfo {
    AgentInfo {
        version: VERSION.into(),
        capabilities: Vec::new(),
    }
}
