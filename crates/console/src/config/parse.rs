//! Parsers of the variables' values. An error continues a sentence: the reader puts the variable's
//! name and value in front of it.

use std::{error::Error, fs, iter, net::IpAddr, path::PathBuf, time::Duration};

use jiff::{Span, SpanRelativeTo};
use svc_store::DatabaseUrl;
use tracing_subscriber::EnvFilter;
use url::Url;

type Parsed<T> = Result<T, String>;

pub(super) fn database_url(text: &str) -> Parsed<DatabaseUrl> {
    DatabaseUrl::parse(text).map_err(|error| {
        let errors = iter::successors(Some(&error as &dyn Error), |&error| error.source());
        errors
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    })
}

/// An origin: cookies with the prefix `__Host-` need the path `/`.
pub(super) fn base_url(text: &str) -> Parsed<Url> {
    let url = http_url(text)?;
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err("has a path: the console is served from the root of a host".into());
    }
    Ok(url)
}

pub(super) fn http_url(text: &str) -> Parsed<Url> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("is not an http:// or https:// URL".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("carries credentials".into());
    }
    Ok(url)
}

pub(super) fn port(text: &str) -> Parsed<u16> {
    match text.parse() {
        Ok(0) | Err(_) => Err("is not a port: use a number from 1 to 65535".into()),
        Ok(port) => Ok(port),
    }
}

pub(super) fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse()
        .map_err(|_| "is not an IP address, such as 0.0.0.0 or ::1".into())
}

pub(super) fn ips(text: &str) -> Parsed<Vec<IpAddr>> {
    text.split(',').map(|part| ip(part.trim())).collect()
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    text.parse().map_err(|_| "is neither true nor false".into())
}

pub(super) fn pool_size(text: &str) -> Parsed<usize> {
    match text.parse() {
        Ok(size) if (4..=1000).contains(&size) => Ok(size),
        _ => Err("is not a number from 4 to 1000".into()),
    }
}

pub(super) fn lifetime(text: &str) -> Parsed<Duration> {
    let parsed = text.parse::<Span>().ok().and_then(|span| {
        let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Duration::try_from(signed).ok()
    });
    match parsed {
        Some(life) if (Duration::from_secs(5)..=Duration::from_hours(24 * 30)).contains(&life) => {
            Ok(life)
        }
        Some(_) => Err("is not between 5s and 30d".into()),
        None => Err("is not a duration, such as 30m, 12h or 7d".into()),
    }
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

pub(super) fn log_filter(text: &str) -> Parsed<String> {
    EnvFilter::try_new(text)
        .map(|_| text.into())
        .map_err(|error| format!("is not a log filter: {error}"))
}

pub(super) fn log_is_json(text: &str) -> Parsed<bool> {
    match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err("is neither text nor json".into()),
    }
}
