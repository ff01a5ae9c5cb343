//! Everything that a call needs: the agent's key, the servers it trusts, and the facts about
//! its machine.
//!
//! Certificate files are read for every connection, so that the agent uses renewed ones
//! without a restart.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls_pki_types::CertificateDer;
use svc_proto::{
    contract::CELLS,
    v1::{
        AgentInfo, CellState, Hello, HostFacts, RegisterRequest, SettingsState, UpdateState,
        Welcome,
    },
};
use tokio::sync::watch;

use crate::{
    anchors::Anchors,
    clock::Clock,
    config::{ClientPair, Config},
    facts,
    identity::{Identity, IdentityError},
    release::version,
    spool::SpoolError,
    trust::TrustError,
    wire::{
        Address, CallFailure, ConnectError, Connection, Connector, Credential, HeartbeatCall,
        Proxy, RegisterCall, Registration, Route, Timeouts, probe,
    },
};

/// The facts about the machine: gathered for each connection, or given by a test.
#[derive(Clone, Debug, Default)]
pub enum Facts {
    #[default]
    OfThisMachine,
    Given(Box<HostFacts>),
}

/// Why a call failed, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Failed(#[from] CallFailure),
    /// The samples to send cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

impl CallError {
    /// The service's hint when to retry.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Failed(failure) => failure.retry_after,
            _ => None,
        }
    }
}

/// Cheap to clone into a task that makes a call.
#[derive(Clone, Debug)]
pub struct Caller {
    identity: Arc<Identity>,
    client_pair: Option<ClientPair>,
    anchors: Arc<Anchors>,
    timeouts: Timeouts,
    route: Route,
    facts: Facts,
    clock: Clock,
    run_id: String,
    update: Option<watch::Receiver<UpdateState>>,
    settings: Option<watch::Receiver<SettingsState>>,
    cell: CellState,
    /// What verifies the cell, besides what the agent trusts anyway.
    cell_certificates: Arc<[CertificateDer<'static>]>,
}

impl Caller {
    pub fn new(
        config: &Config,
        identity: impl Into<Arc<Identity>>,
        facts: Facts,
        clock: Clock,
        timeouts: Timeouts,
        route: Route,
    ) -> Self {
        Self {
            identity: identity.into(),
            client_pair: config.client_pair.clone(),
            anchors: Arc::new(Anchors::open(config)),
            timeouts,
            route,
            facts,
            clock,
            run_id: format!("{:032x}", rand::random::<u128>()),
            update: None,
            settings: None,
            cell: CellState::default(),
            cell_certificates: Arc::default(),
        }
    }

    /// The same, and Hello says how far an update is.
    pub fn reporting(self, update: watch::Receiver<UpdateState>) -> Self {
        Self {
            update: Some(update),
            ..self
        }
    }

    /// The same, and Hello says which settings are in force.
    pub fn stating(self, settings: watch::Receiver<SettingsState>) -> Self {
        Self {
            settings: Some(settings),
            ..self
        }
    }

    /// The same, for another cell.
    pub fn trusting(&self, certificates: Vec<CertificateDer<'static>>) -> Self {
        Self {
            cell_certificates: certificates.into(),
            ..self.clone()
        }
    }

    /// The same, and Hello says this about cells.
    pub fn living_in(self, cell: CellState) -> Self {
        Self { cell, ..self }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The same machine and run with another key.
    pub fn with_identity(&self, identity: impl Into<Arc<Identity>>) -> Self {
        Self {
            identity: identity.into(),
            ..self.clone()
        }
    }

    /// Whom it trusts.
    pub fn anchors(&self) -> &Arc<Anchors> {
        &self.anchors
    }

    async fn connect(&self, address: &Address) -> Result<Connection, CallError> {
        let trust = self.anchors.trust()?.and(&self.cell_certificates);
        let tls = match &self.client_pair {
            None => trust.client(&self.identity)?,
            Some(pair) => trust.client(&Identity::from_files(pair)?)?,
        };
        let connector = Connector::new(Arc::new(tls), self.timeouts, self.route.clone());
        Ok(connector.connect(address).await?)
    }

    /// Connects to where programs are. The same certificates are trusted there, and the system's roots.
    pub fn downloads(&self) -> Result<Connector, CallError> {
        let trust = self.anchors.trust()?.with_system();
        let tls = Arc::new(trust.anonymous()?);
        Ok(Connector::new(tls, self.timeouts, self.route.clone()))
    }

    /// The proxy on the way to this address.
    pub fn proxy_for(&self, address: &Address) -> Option<&Proxy> {
        self.route.proxy_for(address)
    }

    /// The next connection prefers other IP addresses than that of the newest one.
    pub fn leave_peer(&self) {
        self.route.peers.leave();
    }

    /// Connects and opens a heartbeat stream.
    pub async fn open(
        &self,
        address: &Address,
        credential: &Credential,
    ) -> Result<(HeartbeatCall, Welcome), CallError> {
        let connection = self.connect(address).await?;
        let opening =
            HeartbeatCall::open(connection, credential, self.hello(), self.timeouts.welcome);
        Ok(opening.await?)
    }

    /// Connects, and checks that the service answers; returns its time.
    pub async fn probe(&self, address: &Address) -> Result<Option<SystemTime>, CallError> {
        let connection = self.connect(address).await?;
        Ok(probe(connection, self.timeouts.probe).await?)
    }

    /// Connects and registers.
    pub async fn register(
        &self,
        address: &Address,
        request: RegisterRequest,
    ) -> Result<(RegisterCall, Registration), CallError> {
        let connection = self.connect(address).await?;
        Ok(RegisterCall::open(connection, request, self.timeouts.register).await?)
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
            update: self.update.as_ref().map(|state| state.borrow().clone()),
            settings: (self.settings.as_ref()).map(|state| state.borrow().clone()),
            trust: Some(self.anchors.trusted().borrow().state.clone()),
            cell: Some(self.cell.clone()),
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
        version: version().into(),
        capabilities: vec![CELLS.into()],
    }
}
