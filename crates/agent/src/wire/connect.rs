//! One connection to the service: TCP, TLS in both directions, HTTP/2.
//!
//! A name may have several IP addresses. TCP connections race (`race`); the first that is
//! open does the handshake of TLS and HTTP/2. If the handshake fails, the next one of the
//! race takes its place. Each address has its own time for both steps, so no address, however
//! it fails, keeps the agent from another one. Behind an HTTP proxy all of this concerns the
//! proxy's addresses, and the handshake begins with the request for a tunnel.
//!
//! The agent does not use tonic's channel, because that one reconnects by itself. An agent
//! must know when a connection is lost, and chooses the next address itself. The
//! connection lives as long as its [`Connection`]; pings detect a peer that hangs.

use std::{
    error::Error as StdError,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use hyper::{
    body::Incoming,
    client::conn::{
        http1,
        http2::{self, SendRequest},
    },
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use svc_proto::v1::ingest_service_client::IngestServiceClient;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tower::Service;

use super::{
    Address, Exceptions, Names, Peers, Proxy,
    race::{Attempt, Race, interleaved},
};

const STREAM_WINDOW: u32 = 32 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024;
const SEND_BUFFER: usize = 64 * 1024;
const HEADER_LIST: u32 = 8 * 1024;
/// The head of an answer, and what is read of its body at once.
const DOWNLOAD_BUFFER: usize = 64 * 1024;

/// How long the service may take to answer.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The lookup of the name. A dead first name server alone costs 5 s.
    pub resolve: Duration,
    /// TCP, for each IP address.
    pub tcp: Duration,
    /// The handshakes of TLS and HTTP/2, for each IP address.
    pub handshake: Duration,
    /// The first status of a registration. The service takes a whole fleet that registers at
    /// once in turn, and answers each within 30 s.
    pub register: Duration,
    /// Welcome. The service may wait for its database before it answers Hello.
    pub welcome: Duration,
    /// The refusal of a probe, which needs no database.
    pub probe: Duration,
    /// The time between two HTTP/2 pings.
    pub ping_every: Duration,
    /// The connection is closed if a ping is not answered within this time.
    pub ping_answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            resolve: Duration::from_secs(20),
            tcp: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            register: Duration::from_secs(35),
            welcome: Duration::from_secs(20),
            probe: Duration::from_secs(10),
            ping_every: Duration::from_secs(20),
            ping_answer: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the name {host} cannot be resolved: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("no connection to {address} ({peer}): {source}")]
    Tcp {
        address: String,
        peer: SocketAddr,
        source: io::Error,
    },
    #[error("the proxy {proxy} opens no tunnel to {address}: {source}")]
    Proxy {
        proxy: String,
        address: String,
        source: io::Error,
    },
    #[error("{address} is not trusted: {why}")]
    Untrusted { address: String, why: String },
    #[error("the TLS handshake with {address} failed: {source}")]
    Tls { address: String, source: io::Error },
    #[error("{address} does not support HTTP/2: {source}")]
    Http2 {
        address: String,
        source: hyper::Error,
    },
    #[error("{address} does not support HTTP: {source}")]
    Http {
        address: String,
        source: hyper::Error,
    },
    #[error("{address} did not answer in time")]
    TimedOut { address: String },
}

/// How the agent reaches the service.
#[derive(Clone, Debug, Default)]
pub struct Route {
    pub names: Names,
    pub peers: Peers,
    pub proxy: Option<Proxy>,
    /// The hosts that are reached without the proxy.
    pub no_proxy: Exceptions,
}

impl Route {
    pub fn proxy_for(&self, address: &Address) -> Option<&Proxy> {
        let proxy = self.proxy.as_ref()?;
        (!self.no_proxy.cover(address)).then_some(proxy)
    }
}

/// Opens connections with one set of TLS settings.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Arc<ClientConfig>,
    timeouts: Timeouts,
    route: Route,
}

impl Connector {
    pub fn new(tls: Arc<ClientConfig>, timeouts: Timeouts, route: Route) -> Self {
        Self {
            tls,
            timeouts,
            route,
        }
    }

    /// Connects to the first IP address that completes the handshakes. If none does, the
    /// error is that of the address that came furthest.
    pub async fn connect(&self, address: &Address) -> Result<Connection, ConnectError> {
        let handshake = |stream| async {
            let stream = self.secured(address, stream).await?;
            self.http2(address, stream).await
        };
        self.race(address, handshake).await
    }

    /// Connects for an HTTP/1.1 request, in the same way. Without TLS it is a request to this machine, which no proxy forwards.
    pub async fn download(
        &self,
        address: &Address,
        is_tls: bool,
    ) -> Result<Download, ConnectError> {
        let handshake = |stream| async move {
            match is_tls {
                true => http1(address, self.secured(address, stream).await?).await,
                false => http1(address, stream).await,
            }
        };
        self.race(address, handshake).await
    }

    async fn race<T, F: Future<Output = Result<T, ConnectError>>>(
        &self,
        address: &Address,
        handshake: impl Fn(TcpStream) -> F,
    ) -> Result<T, ConnectError> {
        let proxy = self.route.proxy_for(address);
        let found = self.resolve(proxy.map_or(address, |proxy| &proxy.address));
        let found = found.await?;
        let mut race = Race::new(found, self.timeouts.tcp);
        let (mut no_connection, mut no_handshake) = (None, None);
        while let Some(Attempt { peer, connected }) = race.next().await {
            let stream = match connected {
                Ok(stream) => stream,
                Err(source) => {
                    let address = address.to_string();
                    no_connection = Some(ConnectError::Tcp {
                        address,
                        peer,
                        source,
                    });
                    continue;
                }
            };
            let handshake = timeout(self.timeouts.handshake, handshake(stream)).await;
            match handshake.unwrap_or_else(|_| Err(timed_out(address))) {
                Ok(connection) => {
                    self.route.peers.connected(peer);
                    return Ok(connection);
                }
                Err(error) => {
                    self.route.peers.failed(peer);
                    no_handshake = Some(error);
                }
            }
        }
        Err(no_handshake
            .or(no_connection)
            .unwrap_or_else(|| timed_out(address)))
    }

    /// The addresses in the order in which they are tried.
    async fn resolve(&self, hop: &Address) -> Result<Vec<SocketAddr>, ConnectError> {
        let failed = |source| ConnectError::Resolve {
            host: hop.host.clone(),
            source,
        };
        let lookup = self.route.names.resolve(&hop.host, hop.port);
        let found = timeout(self.timeouts.resolve, lookup).await;
        let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let found = interleaved(found.map_err(failed)?);
        Ok(self.route.peers.order(found))
    }

    /// The tunnel, if there is a proxy, and TLS.
    async fn secured(
        &self,
        address: &Address,
        mut stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        if let Some(proxy) = self.route.proxy_for(address) {
            let refused = |source| ConnectError::Proxy {
                proxy: proxy.to_string(),
                address: address.to_string(),
                source,
            };
            stream = proxy.tunnel(stream, address).await.map_err(refused)?;
        }
        self.tls(address, stream).await
    }

    async fn tls(
        &self,
        address: &Address,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        let connector = TlsConnector::from(self.tls.clone());
        let handshake = connector.connect(address.name.clone(), stream);
        handshake.await.map_err(|source| {
            let address = address.to_string();
            match source.get_ref().and_then(distrust) {
                Some(why) => ConnectError::Untrusted { address, why },
                None => ConnectError::Tls { address, source },
            }
        })
    }

    async fn http2(
        &self,
        address: &Address,
        stream: TlsStream<TcpStream>,
    ) -> Result<Connection, ConnectError> {
        let failed = |source| ConnectError::Http2 {
            address: address.to_string(),
            source,
        };
        let chain = stream.get_ref().1.peer_certificates();
        let server = Arc::new(Server {
            chain: chain.unwrap_or_default().to_vec(),
            name: address.name.clone(),
        });
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.timeouts.ping_every)
            .keep_alive_timeout(self.timeouts.ping_answer)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(HEADER_LIST)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let driver = tokio::spawn(async move {
            // The error also reaches every open call, which reports it.
            drop(connection.await);
        });
        let origin = format!("https://{address}").parse::<Uri>();
        Ok(Connection {
            client: IngestServiceClient::with_origin(
                Requests(requests),
                origin.unwrap_or_default(),
            ),
            server,
            _driver: AbortOnDropHandle::new(driver),
        })
    }
}

/// What the server has shown in the handshake.
#[derive(Clone, Debug)]
pub struct Server {
    pub chain: Vec<CertificateDer<'static>>,
    pub name: ServerName<'static>,
}

/// A connection. Its calls fail once it is lost.
#[derive(Debug)]
pub struct Connection {
    pub client: IngestServiceClient<Requests>,
    /// Which was verified before anything was sent.
    pub server: Arc<Server>,
    _driver: AbortOnDropHandle<()>,
}

/// A connection for one download.
#[derive(Debug)]
pub struct Download {
    pub requests: http1::SendRequest<String>,
    _driver: AbortOnDropHandle<()>,
}

async fn http1(
    address: &Address,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Download, ConnectError> {
    let failed = |source| ConnectError::Http {
        address: address.to_string(),
        source,
    };
    let (requests, connection) = http1::Builder::new()
        .max_buf_size(DOWNLOAD_BUFFER)
        .handshake::<_, String>(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let driver = tokio::spawn(async move {
        drop(connection.await); // The request reports the error.
    });
    Ok(Download {
        requests,
        _driver: AbortOnDropHandle::new(driver),
    })
}

fn timed_out(address: &Address) -> ConnectError {
    ConnectError::TimedOut {
        address: address.to_string(),
    }
}

/// What is wrong with the server's certificate, and how to fix it.
fn distrust(cause: &(dyn StdError + Send + Sync + 'static)) -> Option<String> {
    use rustls::CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, Other, UnknownIssuer,
    };
    let rustls::Error::InvalidCertificate(error) = cause.downcast_ref()? else {
        return None;
    };
    Some(match error {
        UnknownIssuer => "nobody that this agent trusts has signed its certificate: let ca_cert_file name its issuer's certificate, or its own".into(),
        Expired | ExpiredContext { .. } => "its certificate has expired, or this machine's clock is ahead".into(),
        NotValidYet | NotValidYetContext { .. } => "its certificate is not valid yet, or this machine's clock is behind".into(),
        NotValidForName | NotValidForNameContext { .. } => "its certificate is for another name: let ingest_address name the host as the certificate does".into(),
        Other(other) if other.to_string().contains("CaUsedAsEndEntity") => "its certificate is an authority's: let ca_cert_file name that very certificate".into(),
        other => format!("its certificate is not good: {other:?}"),
    })
}

/// Adapts hyper's sender of requests to the service trait that the generated client uses.
#[derive(Clone, Debug)]
pub struct Requests(SendRequest<Body>);

impl Service<Request<Body>> for Requests {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
