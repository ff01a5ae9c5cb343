//! The TLS settings of the gRPC port, and the authorities of agents' certificates.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    server::{
        NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
        danger::ClientCertVerifier,
    },
    version::{TLS12, TLS13},
};
use svc_common::tls::{CertificateFacts, Reload, TlsError, TlsPair, certificates, provider};
use tokio_rustls::TlsAcceptor;

use super::verifier::ClientKeyVerifier;
use crate::metrics::ListenerMetrics;

/// The authorities that agents' certificates must chain to.
#[derive(Clone, Debug)]
pub struct ClientCa {
    roots: Arc<RootCertStore>,
    /// When the first of them expires.
    expires_at: Option<Timestamp>,
}

impl ClientCa {
    pub fn load(path: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let certificates = certificates(path)?;
        let facts = certificates.iter().filter_map(CertificateFacts::of);
        let expires_at = facts.map(|facts| facts.not_after).min();
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(TlsError::NoAuthority { path: path.into() });
        }
        let roots = Arc::new(roots);
        Ok(Self { roots, expires_at })
    }

    fn verifier(self) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
        WebPkiClientVerifier::builder_with_provider(self.roots, provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))
    }
}

/// The TLS settings to serve with, and the task that keeps their certificate fresh.
pub fn acceptor(
    pair: TlsPair,
    client_ca: Option<ClientCa>,
    metrics: &ListenerMetrics,
) -> Result<(TlsAcceptor, Reload), rustls::Error> {
    if let Some(at) = client_ca.as_ref().and_then(|ca| ca.expires_at) {
        metrics.expiry("client_ca").set(at.as_second());
    }
    let reload = Reload::new(pair, metrics.expiry("server"));
    let config = config(reload.current(), client_ca)?;
    Ok((TlsAcceptor::from(Arc::new(config)), reload))
}

/// TLS 1.2 and 1.3, a client certificate on every connection, no resumption (so
/// that every connection is verified in full), and HTTP/2 alone.
fn config(
    current: Arc<dyn ResolvesServerCert>,
    client_ca: Option<ClientCa>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = provider();
    let verifier = ClientKeyVerifier {
        algorithms: provider.signature_verification_algorithms,
        chain: client_ca.map(ClientCa::verifier).transpose()?,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(current);
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.ignore_client_order = true;
    Ok(config)
}
