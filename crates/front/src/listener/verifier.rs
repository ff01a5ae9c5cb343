//! Verification of client certificates: the client must prove that it holds the certificate's key.
//!
//! A chain is verified only where a client CA is configured. Without one, any well-formed certificate is
//! accepted, and the key it carries is the client's identity (see [`crate::peer`]).

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;

/// `openssl x509 -req` makes version 1 unless it is given extensions.
#[derive(Debug, thiserror::Error)]
#[error("it is X.509 version 1: make one of version 3, for example with `openssl req -x509`")]
struct VersionOne;

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
            .map_err(|error| Error::InvalidCertificate(problem(&error)))
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

fn problem(error: &webpki::Error) -> CertificateError {
    match error {
        webpki::Error::UnsupportedCertVersion => {
            CertificateError::Other(OtherError(Arc::new(VersionOne)))
        }
        _ => CertificateError::BadEncoding,
    }
}
