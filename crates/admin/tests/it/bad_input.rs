//! Malformed and forged input over the real port: the service refuses it with the reason of the
//! contract, never INTERNAL, and the connection stays usable.

mod jwt;
mod metadata;
mod protobuf;
mod token;

use anyhow::{Context, Result};
use http::{HeaderMap, HeaderValue};
use prost::Message;
use svc_proto::ClientMessage;
use svc_testkit::{
    ActiveAgent, FakeAgent, Instance, OneConnection, RefusedCall, Site, Tls, request,
};
use tonic::{Code, Status};

const REGISTER: &str = "/svc.ingest.v1.IngestService/Register";
const HEARTBEAT: &str = "/svc.ingest.v1.IngestService/Heartbeat";

/// The only connection of an agent. It never reconnects, so a test that still uses it shows that
/// the service did not close it.
struct AgentConnection {
    connection: OneConnection,
    agent: FakeAgent,
}

impl AgentConnection {
    async fn open(instance: &Instance, agent: FakeAgent) -> Result<Self> {
        let tls = Tls::with(&agent.identity);
        Ok(Self {
            connection: OneConnection::open(&tls, instance.grpc).await?,
            agent,
        })
    }

    /// Sends a registration with this body, and returns the refusal.
    async fn register(&mut self, body: Vec<u8>) -> Result<RefusedCall> {
        self.refusal_of(REGISTER, HeaderMap::new(), body).await
    }

    /// Opens a heartbeat stream with these headers and sends Hello. Headers and trailers of the
    /// answer both count.
    async fn heartbeat(&mut self, headers: HeaderMap) -> Result<RefusedCall> {
        let hello = request(ClientMessage::Hello(self.agent.hello()));
        self.refusal_of(HEARTBEAT, headers, framed(&hello.encode_to_vec()))
            .await
    }

    async fn heartbeat_with_jwt(&mut self, jwt: &str) -> Result<RefusedCall> {
        self.heartbeat(authorization(&[format!("Bearer {jwt}").as_bytes()])?)
            .await
    }

    async fn refusal_of(
        &mut self,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<RefusedCall> {
        let trailers = self.connection.ask(path, headers, body).await?;
        let status = Status::from_header_map(&trailers).context("no grpc-status")?;
        Ok(RefusedCall::of(&status))
    }

    async fn assert_usable(&mut self) -> Result<()> {
        anyhow::ensure!(self.connection.health_status().await? == "0");
        Ok(())
    }
}

/// A site with one instance, and an active agent with a connection.
struct Enrolled {
    site: Site,
    instance: Instance,
    connection: AgentConnection,
    active: ActiveAgent,
}

impl Enrolled {
    async fn new() -> Result<Self> {
        let (site, instance, active) = Site::with_agent().await?;
        Ok(Self {
            connection: AgentConnection::open(&instance, active.agent.clone()).await?,
            active,
            site,
            instance,
        })
    }
}

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    framed_as(0, message.len(), message)
}

/// A frame with any flag and any length.
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

/// Whether the stream passed authentication.
fn admitted(end: &RefusedCall) -> bool {
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
