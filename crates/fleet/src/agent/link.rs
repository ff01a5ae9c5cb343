//! One connection of an agent and the heartbeat stream on it, driven by the agent's own task.
//!
//! Invariant: nothing here spawns. HTTP/2 needs its connection polled whenever something is awaited,
//! so every wait goes through [`drive`], and an agent costs one task however many futures it has.

use std::{
    future::{Future, poll_fn},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, RecvStream, SendStream,
    client::{Connection, SendRequest},
};
use http::{HeaderValue, Request};
use prost::Message;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use svc_proto::v1::{HeartbeatResponse, heartbeat_response::Message as Hear};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::lost::Lost;
use crate::wire::Frames;

/// How long a service may leave a ping unanswered.
const PONG_PATIENCE: Duration = Duration::from_secs(20);
/// An address has 28,000 ports to connect from, and one that was used rests for a minute.
pub const AGENTS_PER_ADDRESS: u32 = 4_000;

type Http2 = Connection<TlsStream<TcpStream>, Bytes>;

/// Where to, and how.
#[derive(Clone, Debug)]
pub struct Route {
    pub target: SocketAddr,
    pub source: Option<IpAddr>,
    pub name: ServerName<'static>,
    pub tls: Arc<ClientConfig>,
}

/// A connection without a stream.
pub struct Line {
    http2: Http2,
    requests: SendRequest<Bytes>,
}

/// The two directions of a call.
pub struct Call {
    out: SendStream<Bytes>,
    body: RecvStream,
    frames: Frames,
}

/// A heartbeat stream.
pub struct Link {
    line: Line,
    call: Call,
    pings: Option<PingPong>,
    pinged: Option<Instant>,
}

/// The loopback address that an agent connects from, so that ports do not run out.
pub fn source(number: u32) -> IpAddr {
    let group = number / AGENTS_PER_ADDRESS;
    let [high, low] = ((group % 65_000) as u16).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low.saturating_add(1)).into()
}

/// TCP and TLS.
pub async fn secured(route: &Route) -> Result<TlsStream<TcpStream>, Lost> {
    let tcp = tcp(route).await;
    let tcp = tcp.map_err(|error| Lost::Unreachable(error.kind()))?;
    let tls = TlsConnector::from(route.tls.clone()).connect(route.name.clone(), tcp);
    tls.await.map_err(|_| Lost::Handshake)
}

async fn tcp(route: &Route) -> io::Result<TcpStream> {
    let socket = match route.target {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_nodelay(true)?;
    if let Some(source) = route.source {
        socket.bind((source, 0).into())?;
    }
    socket.connect(route.target).await
}

impl Line {
    pub async fn open(route: &Route) -> Result<Line, Lost> {
        let tls = secured(route).await?;
        let mut builder = h2::client::Builder::new();
        let (requests, http2) = builder.enable_push(false).handshake(tls).await?;
        Ok(Line { http2, requests })
    }

    /// Opens a call with its first message, and waits for the head of the answer.
    pub async fn call(
        &mut self,
        path: &str,
        bearer: Option<&HeaderValue>,
        first: Bytes,
        last: bool,
    ) -> Result<Call, Lost> {
        let request = request(path, bearer).map_err(|_| Lost::Closed)?;
        let mut requests = self.requests.clone();
        drive(&mut self.http2, poll_fn(|cx| requests.poll_ready(cx))).await??;
        let (answer, mut out) = requests.send_request(request, false)?;
        out.send_data(first, last)?;
        let (head, body) = drive(&mut self.http2, answer).await??.into_parts();
        if head.headers.contains_key("grpc-status") {
            return Err(Lost::of(&head.headers));
        }
        let frames = Frames::default();
        Ok(Call { out, body, frames })
    }

    /// The next message of a call.
    pub async fn next<M: Message + Default>(&mut self, call: &mut Call) -> Result<M, Lost> {
        drive(&mut self.http2, call.next()).await?
    }

    pub fn into_link(mut self, call: Call) -> Link {
        let pings = self.http2.ping_pong();
        Link {
            line: self,
            call,
            pings,
            pinged: None,
        }
    }
}

fn request(path: &str, bearer: Option<&HeaderValue>) -> http::Result<Request<()>> {
    let mut request = Request::post(format!("https://svc-ingest{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(bearer) = bearer {
        request = request.header("authorization", bearer);
    }
    request.body(())
}

impl Call {
    /// Cancelled anywhere, it has lost nothing: each piece is kept the moment it is there.
    async fn next<M: Message + Default>(&mut self) -> Result<M, Lost> {
        loop {
            if let Some(message) = self.frames.pop()? {
                return Ok(message);
            }
            let Some(piece) = self.body.data().await else {
                let trailers = self.body.trailers().await?;
                return Err(trailers.map_or(Lost::Closed, |trailers| Lost::of(&trailers)));
            };
            let piece = piece?;
            self.body.flow_control().release_capacity(piece.len())?;
            self.frames.push(&piece);
        }
    }
}

impl Link {
    /// Waits for what the service says. May be cancelled.
    pub async fn hear(&mut self) -> Result<Option<Hear>, Lost> {
        let said: HeartbeatResponse = self.line.next(&mut self.call).await?;
        Ok(said.message)
    }

    /// It leaves at the next wait. HTTP/2 keeps what the service does not take yet, and an agent
    /// has at most two reports out.
    pub fn say(&mut self, framed: Bytes) -> Result<(), Lost> {
        Ok(self.call.out.send_data(framed, false)?)
    }

    /// The last word, and a wait for the service to end the stream.
    pub async fn leave(&mut self, goodbye: Bytes) -> Result<(), Lost> {
        self.call.out.send_data(goodbye, true)?;
        while self.hear().await.is_ok() {}
        Ok(())
    }

    /// For who has waited long: whether anybody is still there.
    pub async fn probe(&mut self) -> Result<(), Lost> {
        let Some(pings) = &mut self.pings else {
            return Ok(());
        };
        match self.pinged {
            None => {
                pings.send_ping(Ping::opaque())?;
                self.pinged = Some(Instant::now());
            }
            Some(at) => match poll_fn(|cx| Poll::Ready(pings.poll_pong(cx))).await {
                Poll::Ready(pong) => {
                    pong?;
                    self.pinged = None;
                }
                Poll::Pending if at.elapsed() > PONG_PATIENCE => return Err(Lost::Silent),
                Poll::Pending => {}
            },
        }
        Ok(())
    }
}

/// Waits for `work` while the connection does what HTTP/2 asks of it. What came with the end of
/// a connection is still seen.
async fn drive<W: Future>(http2: &mut Http2, work: W) -> Result<W::Output, Lost> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let ended = pin!(&mut *http2).poll(cx).is_ready();
        match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if ended => Poll::Ready(Err(Lost::Closed)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_share_loopback_addresses_in_groups() {
        assert_eq!(source(0), source(AGENTS_PER_ADDRESS - 1));
        assert_ne!(source(0), source(AGENTS_PER_ADDRESS));
        let all: std::collections::HashSet<_> = (0..200_000).map(source).collect();
        assert_eq!(all.len(), 50);
        assert!(all.iter().all(IpAddr::is_loopback));
    }
}
