//! Whether an authority has signed a certificate, as the agents that pin it see it.

use std::{path::Path, time::Duration};

use jiff::Timestamp;
use rustls::{
    RootCertStore, client::verify_server_cert_signed_by_trust_anchor, server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use svc_common::tls::{TlsError, certificates, provider};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whether the certificates in the file `authority` vouch for a server's chain at a time.
pub fn is_signed_by(
    chain: &[CertificateDer<'_>],
    authority: &Path,
    at: Timestamp,
) -> Result<bool, TlsError> {
    Ok(is_chained(chain, certificates(authority)?, at))
}

/// Whether agents with these trust anchors, DER, believe a server's chain at a time: one of them has signed it, or is the server's own.
pub fn is_trusted_by(chain: &[CertificateDer<'_>], anchors: &[Vec<u8>], at: Timestamp) -> bool {
    let own = |server: &CertificateDer<'_>| anchors.iter().any(|one| one[..] == **server);
    let issuers = anchors.iter().cloned().map(CertificateDer::from);
    chain.first().is_some_and(own) || is_chained(chain, issuers.collect(), at)
}

fn is_chained(
    chain: &[CertificateDer<'_>],
    issuers: Vec<CertificateDer<'static>>,
    at: Timestamp,
) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(issuers);
    let Some((server, further)) = chain.split_first() else {
        return false;
    };
    let at = Duration::from_secs(at.as_second().try_into().unwrap_or(0));
    let at = UnixTime::since_unix_epoch(at);
    let algorithms = provider().signature_verification_algorithms.all;
    let verified = ParsedCertificate::try_from(server).and_then(|server| {
        verify_server_cert_signed_by_trust_anchor(&server, &roots, further, at, algorithms)
    });
    verified.is_ok()
}

/// For each certificate in the file `authority`, in order, whether it is for this public key (SubjectPublicKeyInfo, DER).
pub fn which_have_key(authority: &Path, public_key: &[u8]) -> Result<Vec<bool>, TlsError> {
    let has_key = |certificate: &CertificateDer<'_>| {
        let parsed = X509Certificate::from_der(certificate);
        parsed.is_ok_and(|(_, parsed)| parsed.tbs_certificate.subject_pki.raw == public_key)
    };
    Ok(certificates(authority)?.iter().map(has_key).collect())
}
