//! What no honest agent sends, through the real port: refused by the contract's
//! reason, never INTERNAL, and the connection it came over goes on.

mod jwt;
mod metadata;
mod protobuf;
mod token;

use anyhow::{Context, Result};
use http::{HeaderMap, HeaderValue};
use prost::Message;
use svc_proto::v1::{AgentInfo, HeartbeatRequest, Hello, heartbeat_request};
use tonic::{Code, Status};

use crate::{
    agents::{AUTO, FakeAgent, Refused, machine, token},
    harness::{Instance, OneConnection, Site, Tls},
};

const REGISTER: &str = "/svc.ingest.v1.IngestService/Register";
const HEARTBEAT: &str = "/svc.ingest.v1.IngestService/Heartbeat";

/// One agent's only connection, which is never opened anew: where a test goes on
/// asking over it, it was not lost.
struct Wire {
    connection: OneConnection,
    agent: FakeAgent,
}

impl Wire {
    async fn open(instance: &Instance, agent: FakeAgent) -> Result<Self> {
        let tls = Tls::with(&agent.identity);
        Ok(Self {
            connection: OneConnection::open(&tls, instance.grpc).await?,
            agent,
        })
    }

    /// How a registration with this body ends.
    async fn register(&mut self, body: Vec<u8>) -> Result<Refused> {
        self.end_of(REGISTER, HeaderMap::new(), body).await
    }

    /// How a heartbeat stream with a Hello ends, opened with these headers. A
    /// refusal looks the same wherever in the answer it stands.
    async fn heartbeat(&mut self, headers: HeaderMap) -> Result<Refused> {
        let hello = Hello {
            agent: Some(AgentInfo::default()),
            host: Some(self.agent.host.clone()),
            run_id: "run".into(),
            sent_at: None,
        };
        let request = HeartbeatRequest {
            message: Some(heartbeat_request::Message::Hello(hello)),
        };
        self.end_of(HEARTBEAT, headers, framed(&request.encode_to_vec()))
            .await
    }

    async fn heartbeat_with_jwt(&mut self, jwt: &str) -> Result<Refused> {
        self.heartbeat(authorization(&[format!("Bearer {jwt}").as_bytes()])?)
            .await
    }

    async fn end_of(&mut self, path: &str, headers: HeaderMap, body: Vec<u8>) -> Result<Refused> {
        let trailers = self.connection.ask(path, headers, body).await?;
        let status = Status::from_header_map(&trailers).context("no grpc-status")?;
        Ok(Refused::of(&status))
    }

    async fn still_works(&mut self) -> Result<()> {
        anyhow::ensure!(self.connection.health_status().await? == "0");
        Ok(())
    }
}

/// A site with one instance, and an active agent that has its JWT.
struct Enrolled {
    site: Site,
    instance: Instance,
    wire: Wire,
    agent_id: String,
    jwt: String,
}

impl Enrolled {
    async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let instance = site.instance().start().await?;
        let agent = FakeAgent::on(machine(1))?;
        let secret = token(&site, AUTO).await?;
        let answer = agent.register(instance.grpc, &secret).await?;
        Ok(Self {
            wire: Wire::open(&instance, agent).await?,
            jwt: answer.credential.context("a JWT")?.jwt,
            agent_id: answer.agent_id,
            site,
            instance,
        })
    }
}

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    framed_as(0, message.len(), message)
}

/// A frame with any flag and length, true or not.
fn framed_as(flag: u8, length: usize, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).expect("a length");
    [&[flag][..], &length.to_be_bytes(), message].concat()
}

fn authorization(values: &[&[u8]]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append("authorization", HeaderValue::from_bytes(value)?);
    }
    Ok(headers)
}

/// Whether a heartbeat stream got past the question who opens it.
fn admitted(end: &Refused) -> bool {
    !matches!(
        end.code,
        Code::Unauthenticated
            | Code::PermissionDenied
            | Code::NotFound
            | Code::InvalidArgument
            | Code::Internal
            | Code::Unknown
    )
}
