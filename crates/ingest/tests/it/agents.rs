//! Agents and administrators as the tests play them: a key, a machine's facts,
//! and the calls of the wire contract.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use svc_ingest::enrol::EnrolmentToken;
use svc_proto::v1::{
    AgentInfo, AgentStatus, HostFacts, RegisterRequest, RegisterResponse,
    ingest_service_client::IngestServiceClient,
};
use svc_sandbox::Identity;
use tokio::time::timeout;
use tonic::{Status, Streaming, transport::Channel};
use tonic_types::StatusExt;

use crate::harness::{PATIENCE, Site, channel};

/// What an administrator lets in.
#[derive(Clone, Copy, Debug)]
pub struct TokenRules {
    pub max_uses: i32,
    pub auto_approve: bool,
    pub allow_reinstall: bool,
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

/// Makes a token, and gives its secret.
pub async fn token(site: &Site, rules: TokenRules) -> anyhow::Result<String> {
    let token = EnrolmentToken::generate()?;
    site.psql(&format!(
        "INSERT INTO enrolment_tokens (hash, label, max_uses, auto_approve, allow_reinstall, expires_at, labels)
         VALUES ('\\x{}', 'test', {}, {}, {}, now() + interval '1 day', '{{\"env\": \"test\"}}')",
        hex(&token.hash().0),
        rules.max_uses,
        rules.auto_approve,
        rules.allow_reinstall
    ))
    .await?;
    Ok(token.expose().to_owned())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A machine of its own, known by its number.
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

/// An installed identity.
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

    /// A channel over this agent's key.
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

    /// One call, and its stream.
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

    /// The first answer of one call.
    pub async fn register(
        &self,
        address: SocketAddr,
        token: &str,
    ) -> anyhow::Result<RegisterResponse> {
        self.open(address, token).await??.answer().await
    }

    /// The refusal of one call.
    pub async fn refused(&self, address: SocketAddr, token: &str) -> anyhow::Result<Refused> {
        match self.open(address, token).await? {
            Err(status) => Ok(Refused::of(&status)),
            Ok(mut stream) => bail!("it was answered: {:?}", stream.answer().await),
        }
    }
}

/// A call that may still be waiting for a decision.
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

    /// How the stream ended, other than with OK.
    pub async fn failure(&mut self) -> anyhow::Result<Refused> {
        match timeout(PATIENCE, self.0.message()).await? {
            Err(status) => Ok(Refused::of(&status)),
            Ok(answer) => bail!("it was answered: {answer:?}"),
        }
    }
}

/// A status, taken apart as a client would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: tonic::Code,
    pub reason: String,
    pub message: String,
    pub retry: bool,
}

impl Refused {
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        assert!(
            info.is_none_or(|info| info.domain == "svc-ingest"),
            "{info:?}"
        );
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            retry: details
                .retry_info()
                .and_then(|retry| retry.retry_delay)
                .is_some(),
        }
    }
}

/// Whether the answer is ACTIVE with a JWT, or something else without.
pub fn is_active(answer: &RegisterResponse) -> bool {
    let active = answer.status() == AgentStatus::Active;
    assert_eq!(
        active,
        answer.credential.is_some(),
        "a JWT goes to active agents alone: {answer:?}"
    );
    active
}
