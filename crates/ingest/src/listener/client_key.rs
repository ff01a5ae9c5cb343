//! Who is at the other end: the key that a client proved to hold.
//!
//! An agent's identity is the SHA-256 of its public key (SPKI). Its certificate
//! is self-signed unless a client CA is configured, so that names and dates in it
//! mean nothing; the handshake's signature proves possession of the key.

use std::{fmt, net::SocketAddr, sync::Arc};

use aws_lc_rs::digest;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio_util::sync::CancellationToken;
use webpki::EndEntityCert;

/// SHA-256 of a client's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub [u8; 32]);

/// What the handlers know of a connection; every request carries it as an extension.
#[derive(Clone, Debug)]
pub struct Peer {
    pub key: ClientKey,
    pub address: SocketAddr,
    /// Cancelled when the connection is about to be closed by us.
    pub leaving: CancellationToken,
}

impl ClientKey {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, webpki::Error> {
        let spki = EndEntityCert::try_from(certificate)?.subject_public_key_info();
        let hash = digest::digest(&digest::SHA256, &spki);
        let mut key = [0; 32];
        key.copy_from_slice(hash.as_ref());
        Ok(Self(key))
    }
}

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Demands a certificate and a proof of its key; a chain only where a CA is configured.
#[derive(Debug)]
pub(super) struct ClientKeyVerifier {
    pub algorithms: WebPkiSupportedAlgorithms,
    pub chain: Option<Arc<dyn ClientCertVerifier>>,
}

impl ClientCertVerifier for ClientKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain
            .as_ref()
            .map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(chain) = &self.chain {
            return chain.verify_client_cert(certificate, intermediates, now);
        }
        EndEntityCert::try_from(certificate)
            .map(|_| ClientCertVerified::assertion())
            .map_err(|_| Error::InvalidCertificate(rustls::CertificateError::BadEncoding))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
