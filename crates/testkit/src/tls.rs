//! TLS clients with any identity, and gRPC channels over them.

use std::{io, net::SocketAddr, sync::Arc};

use ::http::{HeaderMap, Request};
use anyhow::Context;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use svc_sandbox::Identity;
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::PATIENCE;

/// How a client does TLS. It accepts any server certificate; tests check it themselves.
#[derive(Clone, Debug)]
pub struct Tls {
    versions: Vec<&'static SupportedProtocolVersion>,
    identity: Option<Identity>,
}

impl Tls {
    /// With a certificate, and the highest version that both sides have.
    pub fn with(identity: &Identity) -> Self {
        Self {
            versions: vec![&TLS13, &TLS12],
            identity: Some(identity.clone()),
        }
    }

    pub fn without_certificate() -> Self {
        Self {
            versions: vec![&TLS13, &TLS12],
            identity: None,
        }
    }

    pub fn version(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }

    pub fn config(&self) -> anyhow::Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&self.versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![CertificateDer::from(identity.cert_der.clone())];
                let key = PrivatePkcs8KeyDer::from(identity.key_der.clone());
                builder.with_client_auth_cert(chain, PrivateKeyDer::Pkcs8(key))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// A connection whose handshake is complete on this side. With TLS 1.3 the client completes it
    /// before the server has checked the client's certificate: the first read shows the result.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(io::Error::other)?;
        connect_with(config, address).await
    }
}

/// Connects with any settings, within [`PATIENCE`].
pub async fn connect_with(
    config: ClientConfig,
    address: SocketAddr,
) -> io::Result<TlsStream<TcpStream>> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?; // As agents do. Otherwise a request may wait 40 ms for an acknowledgement.
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    timeout(PATIENCE, connecting).await?
}

/// A gRPC channel over one connection, which it opens now, and again when it is lost.
pub async fn channel(address: SocketAddr, identity: &Identity) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_static("https://localhost").timeout(PATIENCE);
    channel_with(endpoint, Tls::with(identity).config()?, address).await
}

pub(crate) async fn channel_with(
    endpoint: Endpoint,
    config: ClientConfig,
    address: SocketAddr,
) -> anyhow::Result<Channel> {
    let connector = service_fn(move |_: Uri| {
        let config = config.clone();
        async move { connect_with(config, address).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// One HTTP/2 connection. Unlike a channel it never reconnects, so a test sees its loss.
#[derive(Debug)]
pub struct OneConnection {
    requests: h2::client::SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl OneConnection {
    pub async fn open(tls: &Tls, address: SocketAddr) -> anyhow::Result<Self> {
        Self::over(tls.connect(address).await?).await
    }

    pub async fn over(stream: TlsStream<TcpStream>) -> anyhow::Result<Self> {
        let (requests, connection) = h2::client::handshake(stream).await?;
        Ok(Self {
            requests,
            driver: tokio::spawn(connection),
        })
    }

    /// Calls the health check and returns the `grpc-status` of the answer.
    pub async fn health_status(&mut self) -> anyhow::Result<String> {
        let path = "/grpc.health.v1.Health/Check";
        let answer = self.ask(path, HeaderMap::new(), vec![0; 5]).await?;
        let status = answer.get("grpc-status").context("no grpc-status")?;
        Ok(status.to_str()?.to_owned())
    }

    /// Sends a call with these headers and this body, and returns the trailers of the answer, or
    /// its headers if it has no body.
    pub async fn ask(
        &mut self,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> anyhow::Result<HeaderMap> {
        let asked = async {
            let mut request = grpc_call(path)?;
            request.headers_mut().extend(headers);
            let mut requests = self.requests.clone().ready().await?;
            let (answer, mut sending) = requests.send_request(request, false)?;
            sending.send_data(body.into(), true)?;
            trailers(answer.await?).await
        };
        timeout(PATIENCE, asked).await?
    }

    /// Waits until the server has closed it. The request handle lives until then: without one, h2
    /// would close the connection itself.
    pub async fn closed(self) -> anyhow::Result<()> {
        let Self { requests, driver } = self;
        drop(timeout(PATIENCE, driver).await?);
        drop(requests);
        Ok(())
    }
}

/// The head of a call over a plain HTTP/2 connection.
pub fn grpc_call(path: &str) -> anyhow::Result<Request<()>> {
    let head = Request::post(format!("https://localhost{path}"));
    let head = head.header("content-type", "application/grpc");
    Ok(head.header("te", "trailers").body(())?)
}

async fn trailers(answer: ::http::Response<h2::RecvStream>) -> anyhow::Result<HeaderMap> {
    let (head, mut body) = answer.into_parts();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    Ok(body.trailers().await?.unwrap_or(head.headers))
}

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Accepts every certificate, but checks that the server holds its key.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
