//! Fake agents (a key, the facts of a machine, and the calls of the wire contract) and the tokens
//! that let them in.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail, ensure};
use svc_ingest::enrol::EnrolmentToken;
use svc_proto::v1::{
    AgentInfo, AgentStatus, Hello, HostFacts, RegisterRequest, RegisterResponse,
    ingest_service_client::IngestServiceClient,
};
use svc_sandbox::Identity;
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming, transport::Channel};
use tonic_types::StatusExt;

use crate::{HeartbeatCall, PATIENCE, Site, channel, eventually};

/// What a token allows.
#[derive(Clone, Copy, Debug)]
pub struct TokenRules {
    pub max_uses: i32,
    pub auto_approve: bool,
    pub allow_reinstall: bool,
}

impl TokenRules {
    pub const fn uses(self, max_uses: i32) -> Self {
        Self { max_uses, ..self }
    }
}

pub const ONE_USE: TokenRules = TokenRules {
    max_uses: 1,
    auto_approve: false,
    allow_reinstall: false,
};
pub const AUTO: TokenRules = TokenRules {
    max_uses: 1000,
    auto_approve: true,
    allow_reinstall: false,
};
pub const REINSTALL: TokenRules = TokenRules {
    allow_reinstall: true,
    ..AUTO
};
pub const MANUAL: TokenRules = TokenRules {
    auto_approve: false,
    ..AUTO
};

/// Creates a token and returns its secret.
pub async fn token(site: &Site, rules: TokenRules) -> anyhow::Result<String> {
    let token = EnrolmentToken::generate()?;
    site.psql(&format!(
        "INSERT INTO enrolment_tokens (hash, label, max_uses, auto_approve, allow_reinstall, expires_at, labels)
         VALUES ('\\x{}', 'test', {}, {}, {}, now() + interval '1 day', '{{\"env\": \"test\"}}')",
        token.hash().0.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        rules.max_uses,
        rules.auto_approve,
        rules.allow_reinstall
    ))
    .await?;
    Ok(token.expose().to_owned())
}

/// The facts of a machine; each number is another machine.
pub fn machine(number: u32) -> HostFacts {
    HostFacts {
        hostname: format!("web-{number}"),
        os: "Debian GNU/Linux".into(),
        os_version: "12".into(),
        arch: "x86_64".into(),
        machine_id: format!("{:032x}", u128::from(number) + 0xabcd_0000),
        hardware_uuid: format!("4c4c4544-0042-3510-8054-{:012x}", u64::from(number) + 1),
        boot_id: format!("boot-{number}"),
        cpu_count: 4,
        memory_total_bytes: 8 << 30,
        ..HostFacts::default()
    }
}

/// An agent: a key on a machine.
#[derive(Clone, Debug)]
pub struct FakeAgent {
    pub identity: Identity,
    pub host: HostFacts,
}

impl FakeAgent {
    pub fn on(host: HostFacts) -> anyhow::Result<Self> {
        Ok(Self {
            identity: Identity::self_signed("agent")?,
            host,
        })
    }

    /// A client that uses this agent's key.
    pub async fn connect(
        &self,
        address: SocketAddr,
    ) -> anyhow::Result<IngestServiceClient<Channel>> {
        Ok(IngestServiceClient::new(
            channel(address, &self.identity).await?,
        ))
    }

    pub fn request(&self, token: &str) -> RegisterRequest {
        RegisterRequest {
            enrolment_token: token.into(),
            host: Some(self.host.clone()),
            agent: Some(AgentInfo {
                version: "1.0.0".into(),
                capabilities: vec![],
            }),
            successor_key: vec![],
        }
    }

    /// Registers, and returns the stream of answers.
    pub async fn open(
        &self,
        address: SocketAddr,
        token: &str,
    ) -> anyhow::Result<Result<Registering, Status>> {
        self.send(address, self.request(token)).await
    }

    pub async fn send(
        &self,
        address: SocketAddr,
        request: RegisterRequest,
    ) -> anyhow::Result<Result<Registering, Status>> {
        let mut client = self.connect(address).await?;
        Ok(client
            .register(request)
            .await
            .map(|response| Registering(response.into_inner())))
    }

    /// Registers an agent that must be pending, and returns the stream of further answers.
    pub async fn pending(&self, address: SocketAddr, token: &str) -> anyhow::Result<Registering> {
        let mut stream = self.open(address, token).await??;
        let answer = stream.answer().await?;
        ensure!(answer.status() == AgentStatus::Pending, "{answer:?}");
        Ok(stream)
    }

    /// Registers, and returns the first answer.
    pub async fn register(
        &self,
        address: SocketAddr,
        token: &str,
    ) -> anyhow::Result<RegisterResponse> {
        self.open(address, token).await??.answer().await
    }

    /// Registers, and returns the refusal.
    pub async fn refused(&self, address: SocketAddr, token: &str) -> anyhow::Result<RefusedCall> {
        match self.open(address, token).await? {
            Err(status) => Ok(RefusedCall::of(&status)),
            Ok(mut stream) => bail!("the service answered: {:?}", stream.answer().await),
        }
    }

    /// Registers an agent that the service approves at once, and returns its JWT.
    pub async fn jwt(&self, address: SocketAddr, token: &str) -> anyhow::Result<String> {
        let answer = self.register(address, token).await?;
        Ok(answer.credential.context("no credential")?.jwt)
    }
}

/// A registration that may still be pending.
#[derive(Debug)]
pub struct Registering(Streaming<RegisterResponse>);

impl Registering {
    pub async fn answer(&mut self) -> anyhow::Result<RegisterResponse> {
        self.next().await?.context("the stream ended")
    }

    pub async fn next(&mut self) -> anyhow::Result<Option<RegisterResponse>> {
        Ok(timeout(PATIENCE, self.0.message())
            .await
            .context("no answer in time")??)
    }

    /// The status that ends the stream, other than OK.
    pub async fn failure(&mut self) -> anyhow::Result<RefusedCall> {
        match timeout(PATIENCE, self.0.message()).await? {
            Err(status) => Ok(RefusedCall::of(&status)),
            Ok(answer) => bail!("the service answered: {answer:?}"),
        }
    }
}

/// An active agent, its JWT, and the service that it registered with.
#[derive(Clone, Debug)]
pub struct ActiveAgent {
    pub agent: FakeAgent,
    pub id: String,
    pub jwt: String,
    pub address: SocketAddr,
}

impl ActiveAgent {
    /// Registers the machine of this number with a token of its own, which approves it.
    pub async fn new(site: &Site, address: SocketAddr, number: u32) -> anyhow::Result<Self> {
        Self::with_token(address, number, &token(site, AUTO).await?).await
    }

    pub async fn with_token(address: SocketAddr, number: u32, token: &str) -> anyhow::Result<Self> {
        let agent = FakeAgent::on(machine(number))?;
        let answer = agent.register(address, token).await?;
        Ok(Self {
            agent,
            id: answer.agent_id,
            jwt: answer.credential.context("no credential")?.jwt,
            address,
        })
    }

    /// Opens a heartbeat stream where it registered.
    pub async fn heartbeat(&self) -> anyhow::Result<HeartbeatCall> {
        self.heartbeat_at(self.address).await
    }

    pub async fn heartbeat_at(&self, address: SocketAddr) -> anyhow::Result<HeartbeatCall> {
        self.agent.heartbeat(address, &self.jwt).await
    }

    /// Opens a heartbeat stream where the service may refuse it for now, no faster than an agent may open streams.
    pub async fn heartbeat_in_time(&self, address: SocketAddr) -> anyhow::Result<HeartbeatCall> {
        let mut opened = None;
        eventually("the stream is open", async || {
            opened = self.heartbeat_at(address).await.ok();
            if opened.is_none() {
                sleep(Duration::from_secs(1)).await;
            }
            opened.is_some()
        })
        .await?;
        opened.context("no stream")
    }

    /// Opens a heartbeat stream that the service refuses.
    pub async fn refused_heartbeat(&self) -> anyhow::Result<RefusedCall> {
        self.refused_hello(self.agent.hello()).await
    }

    /// The same with another Hello.
    pub async fn refused_hello(&self, hello: Hello) -> anyhow::Result<RefusedCall> {
        let opened = self.agent.try_heartbeat(self.address, &self.jwt, hello);
        match opened.await? {
            Err(refused) => Ok(refused),
            Ok(call) => bail!("the service answered: {:?}", call.welcome),
        }
    }

    /// The same key and JWT on another machine.
    pub fn copied_to(&self, host: HostFacts) -> Self {
        let identity = self.agent.identity.clone();
        Self {
            agent: FakeAgent { identity, host },
            ..self.clone()
        }
    }
}

/// The parts of a status that a client acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    pub code: tonic::Code,
    pub reason: String,
    pub message: String,
    pub retry: bool,
}

impl RefusedCall {
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let delay = details.retry_info().and_then(|retry| retry.retry_delay);
        assert!(
            info.is_none_or(|info| info.domain == "svc-ingest"),
            "{info:?}"
        );
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            retry: delay.is_some_and(|delay| !delay.is_zero()),
        }
    }

    #[track_caller]
    pub fn assert(&self, code: tonic::Code, reason: &str) {
        assert_eq!((self.code, &*self.reason), (code, reason), "{self:?}");
    }

    /// The same for a refusal that carries a retry delay.
    #[track_caller]
    pub fn assert_with_delay(&self, code: tonic::Code, reason: &str) {
        self.assert(code, reason);
        assert!(self.retry, "no retry delay: {self:?}");
    }
}

/// Whether the answer is ACTIVE. It must have a JWT if it is, and none if it is not.
pub fn is_active(answer: &RegisterResponse) -> bool {
    let active = answer.status() == AgentStatus::Active;
    assert_eq!(
        active,
        answer.credential.is_some(),
        "only active agents get a JWT: {answer:?}"
    );
    active
}
