//! `sslmode` and the certificate parameters, with libpq's meaning.
//!
//! The driver knows three of the six modes and none of the files. This module decides what is
//! verified; `tls.rs` verifies.

use std::path::PathBuf;

use tokio_postgres::{
    Config,
    config::{Host, SslMode as DriverSslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{DatabaseUrlError, Result, params::Params};
use crate::{
    pg::tls::{self, Check, ClientPair, Roots},
    values::text_enum::text_enum,
};

text_enum! {
    /// libpq's six modes. `allow` tries TLS first, as `prefer` does.
    pub enum SslMode {
        Disable = "disable",
        Allow = "allow",
        Prefer = "prefer",
        Require = "require",
        VerifyCa = "verify-ca",
        VerifyFull = "verify-full",
    }
}

pub(super) fn take_tls(params: &mut Params) -> Result<(SslMode, MakeRustlsConnect)> {
    let roots = params.take("sslrootcert").map(|text| match &*text {
        "system" => Roots::System,
        _ => Roots::File(PathBuf::from(text)),
    });
    let mode = take_mode(params, roots.as_ref())?;
    let client = match (params.take("sslcert"), params.take("sslkey")) {
        (Some(cert), Some(key)) => Some(ClientPair {
            cert: cert.into(),
            key: key.into(),
        }),
        (None, None) => None,
        _ => return Err(DatabaseUrlError::HalfPair),
    };
    let tls = tls::connector(&check(mode, roots)?, client.as_ref())?;
    Ok((mode, tls))
}

/// `sslrootcert=system` makes verify-full the default and allows no weaker mode, because
/// everyone can get a certificate from a public authority.
fn take_mode(params: &mut Params, roots: Option<&Roots>) -> Result<SslMode> {
    let system = matches!(roots, Some(Roots::System));
    let mode = match params.take("sslmode") {
        Some(text) => SslMode::parse(&text).ok_or(DatabaseUrlError::Invalid("sslmode".into()))?,
        None if system => SslMode::VerifyFull,
        None => SslMode::Prefer,
    };
    if system && mode != SslMode::VerifyFull {
        return Err(DatabaseUrlError::WeakSystem(mode));
    }
    Ok(mode)
}

/// As in libpq, a root certificate turns `require` into `verify-ca`.
pub(super) fn check(mode: SslMode, roots: Option<Roots>) -> Result<Check> {
    match (mode, roots) {
        (SslMode::Disable | SslMode::Allow | SslMode::Prefer, _) => Ok(Check::Nothing),
        (SslMode::Require, None) => Ok(Check::Nothing),
        (SslMode::Require, Some(roots)) => Ok(Check::Chain(roots)),
        (SslMode::VerifyCa, roots) => Ok(Check::Chain(roots_or_default(mode, roots)?)),
        (SslMode::VerifyFull, roots) => Ok(Check::ChainAndName(roots_or_default(mode, roots)?)),
    }
}

fn roots_or_default(mode: SslMode, roots: Option<Roots>) -> Result<Roots> {
    let default = || {
        let path = std::env::home_dir()?.join(".postgresql/root.crt");
        path.exists().then_some(Roots::File(path))
    };
    roots
        .or_else(default)
        .ok_or(DatabaseUrlError::NoRoots(mode))
}

/// PostgreSQL has no TLS on Unix sockets, and libpq ignores the mode there.
pub(super) fn driver_mode(mode: SslMode, config: &Config) -> DriverSslMode {
    let local = |host: &Host| matches!(host, Host::Unix(_));
    match mode {
        _ if config.get_hosts().iter().all(local) => DriverSslMode::Disable,
        SslMode::Disable => DriverSslMode::Disable,
        SslMode::Allow | SslMode::Prefer => DriverSslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => DriverSslMode::Require,
    }
}
