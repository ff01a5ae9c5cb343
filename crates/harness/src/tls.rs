//! TLS clients with any identity.

use std::{io, net::SocketAddr, sync::Arc};

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
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

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
