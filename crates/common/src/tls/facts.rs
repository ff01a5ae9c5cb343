//! Names and expiry of a certificate, for people to read.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    pub subject: String,
    /// DNS names and IP addresses of the server.
    pub names: Vec<String>,
    pub not_after: Timestamp,
    pub is_authority: bool,
    /// Issuer and subject are the same.
    pub is_self_signed: bool,
}

impl CertificateFacts {
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten();
        Some(Self {
            names: names
                .map(|names| names.value.general_names.iter().filter_map(name).collect())
                .unwrap_or_default(),
            subject: parsed.subject().to_string(),
            is_authority: parsed.is_ca(),
            is_self_signed: parsed.subject() == parsed.issuer(),
            not_after: Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()?,
        })
    }

    pub fn expired(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let ip = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            Some(ip.ok()?.to_string())
        }
        _ => None,
    }
}
