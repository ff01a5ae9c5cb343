//! One HTTP/2 connection over mutual TLS, and gRPC calls on it, without a task of its own.
//!
//! The `h2` crate does no I/O by itself: sending a request or reading a body only changes queues, and
//! bytes move only while the connection future is polled. Usually a second task polls it for as long as
//! the connection lives; here that would double the tasks of a fleet. Instead every wait of an agent
//! goes through [`drive`], which polls the connection together with the future that is waited for. The
//! rule for new code is: await nothing of `h2` outside `drive`, or it hangs.
//!
//! Between two waits the connection is not polled, so the agent must not await anything else for long
//! while it holds one. The exception is harmless: a drained agent keeps its old connection while it
//! opens the next, and the kernel buffers what arrives there meanwhile.

use std::{
    future::{Future, poll_fn},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use h2::{PingPong, RecvStream, SendStream, client::SendRequest};
use http::{HeaderValue, Request};
use prost::Message;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::failure::Failure;
use crate::wire::Frames;

/// An address has 28,000 local ports, and a closed one stays in TIME_WAIT for a minute.
const AGENTS_PER_ADDRESS: u32 = 4_000;

type Http2 = h2::client::Connection<TlsStream<TcpStream>, Bytes>;

/// Where an agent connects to, from where, and with which key.
#[derive(Clone, Debug)]
pub struct Route {
    pub target: SocketAddr,
    pub source: Option<IpAddr>,
    pub name: ServerName<'static>,
    pub tls: Arc<ClientConfig>,
}

pub struct Connection {
    http2: Http2,
    requests: SendRequest<Bytes>,
}

/// The two directions of a gRPC call.
pub struct Call {
    request: SendStream<Bytes>,
    response: RecvStream,
    frames: Frames,
}

/// The loopback address that an agent connects from. Agents use several, because the local ports of
/// one address do not suffice for a large fleet.
pub fn source_address(number: u32) -> IpAddr {
    let group = number / AGENTS_PER_ADDRESS;
    let [high, low] = ((group % 65_000) as u16).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low.saturating_add(1)).into()
}

async fn connect_tls(route: &Route) -> Result<TlsStream<TcpStream>, Failure> {
    let tcp = connect_tcp(route).await;
    let tcp = tcp.map_err(|error| Failure::Unreachable(error.kind()))?;
    let tls = TlsConnector::from(route.tls.clone()).connect(route.name.clone(), tcp);
    tls.await.map_err(|error| Failure::from_handshake(&error))
}

async fn connect_tcp(route: &Route) -> io::Result<TcpStream> {
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

impl Connection {
    pub async fn open(route: &Route) -> Result<Connection, Failure> {
        let tls = connect_tls(route).await?;
        let mut builder = h2::client::Builder::new();
        let (requests, http2) = builder.enable_push(false).handshake(tls).await?;
        Ok(Connection { http2, requests })
    }

    /// Opens a call with its first message, and waits for the response headers. `last` closes the
    /// request after that message.
    pub async fn call(
        &mut self,
        path: &str,
        bearer: Option<&HeaderValue>,
        first: Bytes,
        last: bool,
    ) -> Result<Call, Failure> {
        let request = request(path, bearer).map_err(|_| Failure::Closed)?;
        let Connection { http2, requests } = self;
        drive(http2, poll_fn(|cx| requests.poll_ready(cx))).await??;
        let (response, mut request) = requests.send_request(request, false)?;
        request.send_data(first, last)?;
        let (head, response) = drive(http2, response).await??.into_parts();
        if head.headers.contains_key("grpc-status") {
            return Err(Failure::from_trailers(&head.headers));
        }
        Ok(Call {
            request,
            response,
            frames: Frames::default(),
        })
    }

    /// Waits for the next message of a call. Cancel-safe.
    pub async fn next<M: Message + Default>(&mut self, call: &mut Call) -> Result<M, Failure> {
        drive(&mut self.http2, call.next()).await?
    }

    /// The handle for HTTP/2 pings; a connection gives it out once.
    pub fn ping_pong(&mut self) -> Option<PingPong> {
        self.http2.ping_pong()
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
    /// Queues a framed message; the next wait on the connection sends it.
    ///
    /// It asks h2 for no flow-control capacity first: h2 keeps what the peer's window does not allow
    /// yet. That buffer is bounded only by the callers, which send one Hello and at most two reports
    /// before the service acknowledges one.
    pub fn send(&mut self, framed: Bytes, last: bool) -> Result<(), Failure> {
        Ok(self.request.send_data(framed, last)?)
    }

    /// Cancel-safe: each received chunk is in `frames` before the next await.
    ///
    /// A receiver must return flow-control capacity, or the peer stops sending when its window is used
    /// up. It is returned as soon as a chunk is copied out, because the messages of the service are
    /// small and the agent never wants to hold the service back.
    async fn next<M: Message + Default>(&mut self) -> Result<M, Failure> {
        loop {
            if let Some(message) = self.frames.pop()? {
                return Ok(message);
            }
            let Some(chunk) = self.response.data().await else {
                let trailers = self.response.trailers().await?;
                return Err(trailers.map_or(Failure::Closed, |trailers| {
                    Failure::from_trailers(&trailers)
                }));
            };
            let chunk = chunk?;
            self.response.flow_control().release_capacity(chunk.len())?;
            self.frames.push(&chunk);
        }
    }
}

/// Waits for `work` while it polls the connection.
///
/// The connection is polled first: it reads from the socket and wakes the streams that got data, so
/// that `work` sees it in the same poll. When the connection has ended, `work` is still polled once
/// more: a status that arrived together with the end is in the stream's queue, and it says more than
/// "connection closed". The next `drive` may poll the ended connection again; h2 allows that and reports
/// the end again.
async fn drive<W: Future>(http2: &mut Http2, work: W) -> Result<W::Output, Failure> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let ended = pin!(&mut *http2).poll(cx).is_ready();
        match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if ended => Poll::Ready(Err(Failure::Closed)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{
        identity::{Seed, identity},
        tls::{self, TlsBase},
    };

    /// As `openssl req -x509` makes it.
    #[tokio::test]
    async fn a_server_certificate_that_is_marked_as_a_ca_is_explained() -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        let server = tls::server(certificate.as_bytes(), key.serialize_pem().as_bytes())?;
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let route = Route {
            target: socket.local_addr()?,
            source: None,
            name: ServerName::try_from("localhost")?,
            tls: TlsBase::new(Some(&certificate))?.with_key(&identity(Seed::of("test"), 0)?),
        };
        tokio::spawn(async move {
            let (stream, _) = socket.accept().await?;
            let acceptor = TlsAcceptor::from(Arc::new(server));
            acceptor.accept(stream).await.map(drop)
        });
        let failure = connect_tls(&route)
            .await
            .expect_err("it is no server certificate");
        assert!(failure.label().contains("CA:FALSE"), "{}", failure.label());
        Ok(())
    }

    #[test]
    fn agents_share_loopback_addresses_in_groups() {
        assert_eq!(source_address(0), source_address(AGENTS_PER_ADDRESS - 1));
        assert_ne!(source_address(0), source_address(AGENTS_PER_ADDRESS));
        let all: std::collections::HashSet<_> = (0..200_000).map(source_address).collect();
        assert_eq!(all.len(), 50);
        assert!(all.iter().all(IpAddr::is_loopback));
    }
}
