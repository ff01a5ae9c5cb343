//! Parsers of the variables' values. An error continues a sentence: the reader puts the variable's name and value in
//! front of it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use rustix::process::{Resource, Rlimit, getrlimit};
use secrecy::SecretString;
pub(super) use svc_common::settings::parse::{Parsed, boolean, ip, networks, pool_size, port};
use svc_common::settings::parse::{bounded, duration, http_url};
use svc_pipeline::{
    export::Protocol,
    queue::{NatsServers, QueueUrl},
};
use svc_store::DatabaseUrl;
use url::Url;

use super::memory;
use crate::error_chain::chain;

const DAY: Duration = Duration::from_hours(24);
/// Open files that are not agents' connections: the database pool, the HTTP port, logs and certificates.
const RESERVED_FILES: usize = 512;
/// What a connection needs: 47 KiB of the service after traffic and 4 KiB of the kernel (docs/sizing.md), and a
/// quarter in reserve.
const CONNECTION_BYTES: u64 = 64 * 1024;
/// The part of the memory that connections may fill. The rest is for the queue, the database's client, and others.
const MEMORY_PART: u64 = 2;

pub(super) fn database_url(text: &str) -> Parsed<DatabaseUrl> {
    DatabaseUrl::parse(text).map_err(|error| chain(&error))
}

pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    if text.contains('\0') {
        return Err("is not a path".into());
    }
    Ok(text.into())
}

/// One path for each key of a rotation: the old one and the new one, and some to spare.
const MAX_PATHS: usize = 8;

/// Paths separated by commas.
pub(super) fn paths(text: &str) -> Parsed<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = text
        .split(',')
        .map(str::trim)
        .map(path)
        .collect::<Result<_, _>>()?;
    match paths.len() {
        ..=MAX_PATHS => Ok(paths),
        count => Err(format!(
            "names {count} files: at most {MAX_PATHS} are accepted"
        )),
    }
}

pub(super) fn readable_file(text: &str) -> Parsed<PathBuf> {
    let path = path(text)?;
    match fs::metadata(&path) {
        Ok(metadata) if !metadata.is_file() => Err("is not a file".into()),
        _ => File::open(&path)
            .map(|_| path)
            .map_err(|error| format!("cannot be read: {error}")),
    }
}

/// Without a value (the empty text), the limit follows from the process's limits of open files and memory.
pub(super) fn max_connections(text: &str) -> Parsed<usize> {
    if text.is_empty() {
        let files = file_limit(|limit| limit.current).saturating_sub(RESERVED_FILES);
        let memory = memory::limit(Path::new("/")).map_or(usize::MAX, connections_in);
        return Ok(files.min(memory).max(64));
    }
    bounded(text, 1, file_limit(|limit| limit.maximum))
}

pub(super) fn heartbeat_interval(text: &str) -> Parsed<Duration> {
    duration(text, Duration::from_secs(1), Duration::from_hours(1))
}

pub(super) fn drain_delay(text: &str) -> Parsed<Duration> {
    duration(text, Duration::ZERO, Duration::from_mins(2))
}

pub(super) fn drain_timeout(text: &str) -> Parsed<Duration> {
    duration(text, Duration::from_secs(1), Duration::from_mins(10))
}

/// Less would retire machines that are switched off over night.
pub(super) fn host_expiry(text: &str) -> Parsed<Duration> {
    duration(text, DAY, DAY * 3660)
}

pub(super) fn retention(text: &str) -> Parsed<Duration> {
    duration(text, DAY, DAY * 3660)
}

/// A PostgreSQL identifier. Statements quote it.
pub(super) fn role(text: &str) -> Parsed<String> {
    if text.len() > 63 || text.contains('\0') {
        return Err("is not a PostgreSQL role: at most 63 bytes".into());
    }
    Ok(text.into())
}

pub(super) fn version(text: &str) -> Parsed<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-+_~".contains(c);
    if text.len() > 64 || !text.chars().all(allowed) {
        return Err("is not a version, such as 1.4.0".into());
    }
    Ok(text.into())
}

pub(super) fn base_url(text: &str) -> Parsed<Url> {
    let url = http_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("carries a query or a fragment: agents append a path to it".into());
    }
    Ok(url)
}

/// Credentials belong into INGEST_OTLP_HEADERS.
pub(super) fn otlp_endpoint(text: &str) -> Parsed<Url> {
    let url = http_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("carries a query or a fragment: a path is appended to it".into());
    }
    Ok(url)
}

pub(super) fn otlp_protocol(text: &str) -> Parsed<Protocol> {
    Protocol::parse(text).ok_or_else(|| "is neither http/protobuf nor grpc".into())
}

/// `name=value`, separated by commas.
pub(super) fn headers(text: &str) -> Parsed<Vec<(HeaderName, SecretString)>> {
    let header = |text: &str| {
        let (name, value) = text.split_once('=')?;
        HeaderValue::from_str(value.trim()).ok()?;
        Some((name.trim().parse().ok()?, value.trim().into()))
    };
    let headers: Option<_> = text.split(',').map(header).collect();
    headers.ok_or_else(|| "is not a list of headers as name=value, separated by commas".into())
}

pub(super) fn queue_url(text: &str) -> Parsed<QueueUrl> {
    match text {
        "memory:" => Ok(QueueUrl::Memory),
        servers => NatsServers::parse(servers).map(QueueUrl::Nats),
    }
}

/// How many connections fit into their part of the memory.
fn connections_in(memory: u64) -> usize {
    usize::try_from(memory / MEMORY_PART / CONNECTION_BYTES).unwrap_or(usize::MAX)
}

/// The current or the maximum limit of open files. Commands that serve have raised the current one to the maximum.
fn file_limit(which: fn(Rlimit) -> Option<u64>) -> usize {
    which(getrlimit(Resource::Nofile))
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_number_of_connections_fits_into_half_of_the_memory() {
        assert_eq!(connections_in(512 << 20), 4096);
        let (default, memory) = (max_connections("").unwrap(), memory::limit(Path::new("/")));
        assert!(default as u64 * CONNECTION_BYTES <= memory.unwrap() / MEMORY_PART);
        assert!(default <= file_limit(|limit| limit.current));
    }
}
