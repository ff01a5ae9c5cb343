//! Agents that stop reading their stream.

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::Builder};
use svc_proto::{ClientMessage, v1::HeartbeatRequest};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
    time::timeout,
};

use crate::{ActiveAgent, PATIENCE, Site, Tls, framed, grpc_call, request};

/// A heartbeat stream over HTTP/2 whose answers are read only on request.
#[derive(Debug)]
pub struct UnreadStream {
    pub connection: JoinHandle<Result<(), h2::Error>>,
    pub answers: RecvStream,
    body: SendStream<Bytes>,
}

impl UnreadStream {
    /// Opens the stream of this agent over a connection of its own, and waits for Welcome.
    pub async fn welcomed(agent: &ActiveAgent) -> Result<Self> {
        let tls = Tls::with(&agent.agent.identity);
        let stream = tls.connect(agent.address).await?;
        let mut stream = Self::open(&mut Builder::new(), stream, agent).await?;
        let welcome = timeout(PATIENCE, stream.answers.data()).await?;
        welcome.context("no Welcome")??;
        Ok(stream)
    }

    /// Opens the stream over this connection, and sends Hello.
    pub async fn open<S>(http2: &mut Builder, stream: S, agent: &ActiveAgent) -> Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = http2.handshake(stream).await?;
        let connection = tokio::spawn(connection);
        let mut head = grpc_call("/svc.ingest.v1.IngestService/Heartbeat")?;
        let bearer = format!("Bearer {}", agent.jwt).parse()?;
        head.headers_mut().insert("authorization", bearer);
        let (answer, mut body) = requests.ready().await?.send_request(head, false)?;
        let hello = request(ClientMessage::Hello(agent.agent.hello()));
        body.send_data(framed(&hello), false)?;
        Ok(Self {
            connection,
            answers: answer.await?.into_body(),
            body,
        })
    }

    pub fn send(&mut self, request: &HeartbeatRequest) -> Result<()> {
        Ok(self.body.send_data(framed(request), false)?)
    }

    /// Sends from the front of `bytes` as much as the service takes, until it takes nothing for `patience`. Returns how
    /// many bytes it took.
    pub async fn send_taken(&mut self, bytes: &mut Bytes, patience: Duration) -> Result<usize> {
        let before = bytes.len();
        while !bytes.is_empty() {
            self.body.reserve_capacity(bytes.len());
            let capacity = poll_fn(|context| self.body.poll_capacity(context));
            let Ok(capacity) = timeout(patience, capacity).await else {
                break;
            };
            let capacity = capacity.context("the stream has ended")??;
            let part = bytes.split_to(capacity.min(bytes.len()));
            self.body.send_data(part, false)?;
        }
        Ok(before - bytes.len())
    }
}

/// An agent sends Hello and grants no window for the answer. Returns how long it took until the
/// service had closed the connection and the session.
pub async fn stops_reading(site: &Site, agent: &ActiveAgent) -> Result<Duration> {
    let stream = Tls::with(&agent.agent.identity)
        .connect(agent.address)
        .await?;
    let mut http2 = Builder::new();
    http2.initial_window_size(0);
    let stream = UnreadStream::open(&mut http2, stream, agent).await?;
    let opened = Instant::now();
    drop(timeout(PATIENCE, stream.connection).await?);
    site.becomes("SELECT instance_id IS NULL FROM agent_state", "t")
        .await?;
    Ok(opened.elapsed())
}
