//! A client of an OTLP receiver: one connection, kept while it works.

use std::{io, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::protocol::{Answer, Protocol, Receiver, Refused};

/// The most that is read of an answer.
const ANSWER_BYTES: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("the receiver cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error("the connection to the receiver broke")]
    Broken(#[from] hyper::Error),
    #[error("the answer is longer than {ANSWER_BYTES} bytes, or broke off")]
    Answer,
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
}

impl PostError {
    /// Whether the same request may succeed later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) | Self::Answer => true,
            Self::Refused(refused) => refused.is_passing(),
            Self::Request(_) => false,
        }
    }
}

pub(super) struct Client {
    receiver: Receiver,
    tls: Arc<ClientConfig>,
    connection: Option<Connection>,
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(super) fn new(receiver: Receiver) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![receiver.protocol.alpn().to_vec()];
        Ok(Self {
            receiver,
            tls: Arc::new(tls),
            connection: None,
        })
    }

    /// Sends one request, and returns what the receiver says about points that it did not take. After a failure the next
    /// request opens a new connection.
    pub(super) async fn post(&mut self, message: Bytes) -> Result<Option<String>, PostError> {
        let protocol = self.receiver.protocol;
        let request = protocol.request(&self.receiver, message)?;
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(open) => open,
            None => self.connect().await?,
        };
        let answer = read(connection.send(request).await?).await?;
        self.connection = Some(connection);
        Ok(protocol.outcome(&answer)?)
    }

    async fn connect(&self) -> Result<Connection, PostError> {
        let url = &self.receiver.url;
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or_default();
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(PostError::Unreachable)?;
        if url.scheme() != "https" {
            return handshake(self.receiver.protocol, stream).await;
        }
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| PostError::Unreachable(io::Error::other(error)))?;
        let tls = TlsConnector::from(self.tls.clone())
            .connect(name, stream)
            .await;
        handshake(self.receiver.protocol, tls.map_err(PostError::Unreachable)?).await
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed(),
            Self::Http2(sender) => !sender.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}

/// The task of the connection ends with its sender, at the latest.
async fn handshake(
    protocol: Protocol,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, PostError> {
    let stream = TokioIo::new(stream);
    Ok(match protocol {
        Protocol::Http => {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Connection::Http1(sender)
        }
        Protocol::Grpc => {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Connection::Http2(sender)
        }
    })
}

async fn read(response: Response<Incoming>) -> Result<Answer, PostError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES).collect().await;
    let body = body.map_err(|_| PostError::Answer)?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.to_bytes(),
        trailers,
    })
}
