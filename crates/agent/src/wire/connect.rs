//! One connection to the service: TCP, TLS in both directions, HTTP/2.
//!
//! Not tonic's channel: that one connects again by itself, while an agent wants to
//! know when a connection is lost, and decides itself where the next one goes. The
//! connection lives as long as its [`Connection`]; pings find out when the other side
//! stands still.

use std::{
    error::Error as StdError,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use svc_proto::v1::ingest_service_client::IngestServiceClient;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tower::Service;

use super::Address;

const STREAM_WINDOW: u32 = 32 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024;
const SEND_BUFFER: usize = 64 * 1024;
const HEADER_LIST: u32 = 8 * 1024;

/// How long the other side may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the name's lookup to the end of the handshakes.
    pub connect: Duration,
    /// How often it is asked whether it is still there, and how long it may take to answer.
    pub ping_every: Duration,
    pub ping_answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            ping_every: Duration::from_secs(20),
            ping_answer: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the name {host} is not known: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("no connection to {address}: {source}")]
    Tcp { address: String, source: io::Error },
    #[error("{address} is not believed: {why}")]
    Untrusted { address: String, why: String },
    #[error("the TLS handshake with {address} failed: {source}")]
    Tls { address: String, source: io::Error },
    #[error("{address} speaks no HTTP/2: {source}")]
    Http2 {
        address: String,
        source: hyper::Error,
    },
    #[error("{address} did not answer in time")]
    TimedOut { address: String },
}

/// Opens connections by one set of TLS settings.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Arc<ClientConfig>,
    patience: Patience,
}

impl Connector {
    pub fn new(tls: Arc<ClientConfig>, patience: Patience) -> Self {
        Self { tls, patience }
    }

    pub async fn connect(&self, address: &Address) -> Result<Connection, ConnectError> {
        let connecting = async {
            let stream = self.tls(address, dial(address).await?).await?;
            self.http2(address, stream).await
        };
        let timed_out = |_| ConnectError::TimedOut {
            address: address.to_string(),
        };
        timeout(self.patience.connect, connecting)
            .await
            .map_err(timed_out)?
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
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.patience.ping_every)
            .keep_alive_timeout(self.patience.ping_answer)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(HEADER_LIST)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let driver = tokio::spawn(async move {
            // Whoever has a call open on it sees why it ended.
            drop(connection.await);
        });
        let origin = format!("https://{address}").parse::<Uri>();
        Ok(Connection {
            client: IngestServiceClient::with_origin(
                Requests(requests),
                origin.unwrap_or_default(),
            ),
            _driver: AbortOnDropHandle::new(driver),
        })
    }
}

/// A connection that is open, or was: its calls tell.
#[derive(Debug)]
pub struct Connection {
    pub client: IngestServiceClient<Requests>,
    _driver: AbortOnDropHandle<()>,
}

/// The first of the name's addresses that answers.
async fn dial(address: &Address) -> Result<TcpStream, ConnectError> {
    let resolve = |source| ConnectError::Resolve {
        host: address.host.clone(),
        source,
    };
    let found = lookup_host((address.host.as_str(), address.port)).await;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for at in found.map_err(resolve)? {
        match TcpStream::connect(at).await {
            Ok(stream) => {
                drop(stream.set_nodelay(true)); // Slower without, and nothing worse.
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Tcp {
        address: address.to_string(),
        source: last,
    })
}

/// What is wrong with the server's certificate, and what would mend it.
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

/// hyper's requests, as the generated client wants them.
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
