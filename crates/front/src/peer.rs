//! The client at the other end of a connection, identified by the key that it proved to hold.
//!
//! An agent's identity is the SHA-256 of its public key (SubjectPublicKeyInfo, SPKI). Its certificate is
//! self-signed unless a client CA is configured, so the names and dates in it mean nothing. The
//! signature in the TLS handshake proves possession of the key.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use webpki::EndEntityCert;

use crate::places::Standing;

/// SHA-256 of a client's SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub [u8; 32]);

/// What request handlers know about a connection. Every request carries it as an extension.
#[derive(Clone, Debug)]
pub struct Peer {
    pub key: ClientKey,
    pub address: SocketAddr,
    /// Cancelled shortly before the service closes the connection.
    pub closing: CancellationToken,
    pub standing: Standing,
}

impl Peer {
    /// An IPv4 address as such, also on a socket for both families.
    pub fn ip(&self) -> IpAddr {
        self.address.ip().to_canonical()
    }
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
