//! Where the console listens, and whether with a certificate of its own.
//!
//! Passwords and sessions must not cross a network in clear text, so a console without a certificate listens on this machine
//! alone unless the administrator names an address.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use svc_common::{
    http::Transport,
    settings::{Problems, Reader, read_environment},
    tls::TlsPair,
};

use super::{parse, variables::VARIABLES};

const BIND_ADDRESS: &str = "CONSOLE_BIND_ADDRESS";
const CERTIFICATE: &str = "CONSOLE_TLS_CERT";
const KEY: &str = "CONSOLE_TLS_KEY";

#[derive(Debug)]
pub struct Listening {
    pub address: SocketAddr,
    pub tls: Option<TlsPair>,
    /// Whether the address follows from the missing certificate.
    by_default: bool,
}

impl Listening {
    pub(super) fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let files = files(reader);
        let given = reader.optional(BIND_ADDRESS, parse::ip);
        let port = reader.value("CONSOLE_PORT", parse::port);
        let tls = match &files? {
            Some((certificate, key)) => Some(TlsPair::read(
                reader,
                (CERTIFICATE, certificate),
                (KEY, key),
            )?),
            None => None,
        };
        let given = given?;
        Some(Self {
            address: address(given, port?, tls.is_some()),
            by_default: given.is_none(),
            tls,
        })
    }

    /// Says how the console is reached without a certificate, and what to do about it.
    pub fn explain(&self) {
        if self.tls.is_some() {
            return;
        }
        if self.by_default {
            tracing::info!(
                "without a certificate the console listens on this machine alone: set CONSOLE_TLS_CERT and CONSOLE_TLS_KEY, \
                 or CONSOLE_BIND_ADDRESS for a proxy on another machine that ends TLS"
            );
        } else if !self.address.ip().is_loopback() {
            tracing::warn!(
                address = %self.address,
                "the console serves clear text beyond this machine: unless only a proxy that ends TLS can reach it, set \
                 CONSOLE_TLS_CERT and CONSOLE_TLS_KEY"
            );
        }
    }
}

/// What a console with this environment is bound to, for the health check. It reads no certificate.
pub fn bound() -> Result<(SocketAddr, Transport), Problems> {
    read_environment(VARIABLES, |reader| {
        let tls = files(reader)?.is_some();
        let given = reader.optional(BIND_ADDRESS, parse::ip);
        let port = reader.value("CONSOLE_PORT", parse::port);
        let transport = match tls {
            true => Transport::Tls,
            false => Transport::Clear,
        };
        Some((address(given?, port?, tls), transport))
    })
}

/// The files of the certificate and its key: both or none.
fn files(reader: &mut Reader<'_>) -> Option<Option<(PathBuf, PathBuf)>> {
    let certificate = reader.optional(CERTIFICATE, parse::path);
    let key = reader.optional(KEY, parse::path);
    match (certificate?, key?) {
        (Some(certificate), Some(key)) => Some(Some((certificate, key))),
        (None, None) => Some(None),
        (Some(_), None) => reader.problem(KEY, "is missing, but CONSOLE_TLS_CERT is set"),
        (None, Some(_)) => reader.problem(CERTIFICATE, "is missing, but CONSOLE_TLS_KEY is set"),
    }
}

fn address(given: Option<IpAddr>, port: u16, tls: bool) -> SocketAddr {
    let default = match tls {
        true => Ipv4Addr::UNSPECIFIED,
        false => Ipv4Addr::LOCALHOST,
    };
    SocketAddr::new(given.unwrap_or(default.into()), port)
}
