//! Parsers of the variables' values. An error continues a sentence: the reader puts the variable's
//! name and value in front of it.

use std::{fs, path::PathBuf, time::Duration};

pub(super) use svc_common::settings::parse::{
    Parsed, boolean, http_url, ip, networks, pool_size, port,
};
use svc_common::{error_chain::chain, settings::parse::duration};
use svc_store::DatabaseUrl;
use url::Url;

pub(super) fn database_url(text: &str) -> Parsed<DatabaseUrl> {
    DatabaseUrl::parse(text).map_err(|error| chain(&error))
}

/// An origin: cookies with the prefix `__Host-` need the path `/`.
pub(super) fn base_url(text: &str) -> Parsed<Url> {
    let url = http_url(text)?;
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err("has a path: the console is served from the root of a host".into());
    }
    Ok(url)
}

pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    Ok(text.into())
}

pub(super) fn lifetime(text: &str) -> Parsed<Duration> {
    duration(text, Duration::from_secs(5), Duration::from_hours(24 * 30))
}

pub(super) fn folder(text: &str) -> Parsed<PathBuf> {
    let path = PathBuf::from(text);
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err("is not a folder".into()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// The text of a file with certificates.
pub(super) fn certificates(text: &str) -> Parsed<String> {
    let pem = fs::read_to_string(text).map_err(|error| format!("cannot be read: {error}"))?;
    match pem.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(pem),
        false => Err("has no certificate in PEM format".into()),
    }
}

/// It stands in shell scripts and commands to copy, so its letters are few.
pub(super) fn address(text: &str) -> Parsed<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    match text.len() <= 255 && text.chars().all(allowed) {
        true => Ok(text.into()),
        false => Err("is not an address: host or host:port".into()),
    }
}
