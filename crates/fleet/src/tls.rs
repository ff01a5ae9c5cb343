//! TLS configuration of the virtual agents and of the bare echo server.
//!
//! On loopback an agent accepts any server certificate whose key the server holds: the same person has
//! started the service there. For other targets a CA must have signed the certificate, because the agent
//! sends its enrolment token to that server.

use std::sync::Arc;

use anyhow::Context;
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    RootCertStore, ServerConfig, SignatureScheme,
    client::{WebPkiServerVerifier, danger::HandshakeSignatureValid},
    crypto::{CryptoProvider, aws_lc_rs::default_provider, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use svc_harness::{Tls, provider};

/// The client configuration that all agents share, without a key.
#[derive(Clone, Debug)]
pub struct TlsBase(ClientConfig);

impl TlsBase {
    pub fn new(ca_pem: Option<&str>) -> anyhow::Result<TlsBase> {
        let mut config = Tls::without_certificate().version(&TLS13).config()?;
        if let Some(pem) = ca_pem {
            let verifier = verify_with_ca(pem)?;
            config.dangerous().set_certificate_verifier(verifier);
        }
        Ok(TlsBase(config))
    }

    pub fn with_key(&self, key: &Arc<CertifiedKey>) -> Arc<ClientConfig> {
        let mut config = self.0.clone();
        let key = CertifiedKey::clone(key);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
        Arc::new(config)
    }
}

fn verify_with_ca(pem: &str) -> anyhow::Result<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    anyhow::ensure!(!roots.is_empty(), "no certificate in the CA file");
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    verifier.build().context("the CA file")
}

/// The configuration of a server that requires a client certificate and accepts any, with the cipher suites of the service.
pub fn server(cert_pem: &[u8], key_pem: &[u8]) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(cert_pem).collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(cheapest_first()))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(AnyCertificate(provider())))
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key_pem)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.send_tls13_tickets = 0;
    config.ignore_client_order = true;
    Ok(config)
}

/// AES-128 with SHA-256 first, as in the service: the baseline must not pay for another cipher suite.
fn cheapest_first() -> CryptoProvider {
    let mut provider = default_provider();
    let cheapest = CipherSuite::TLS13_AES_128_GCM_SHA256;
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|suite| suite.suite() != cheapest);
    provider
}

/// Accepts every certificate, but checks that the peer holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
