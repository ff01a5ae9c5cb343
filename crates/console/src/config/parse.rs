//! Parsers of the variables' values. An error continues a sentence: the reader puts the variable's
//! name and value in front of it.

use std::{fs, path::PathBuf, time::Duration};

pub(super) use svc_common::settings::parse::{
    Parsed, boolean, bounded, http_url, ip, networks, pool_size, port,
};
use svc_common::{error_chain::chain, settings::parse::duration};
use svc_release::PublicKey;
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

pub(super) fn lifetime(text: &str) -> Parsed<Duration> {
    duration(text, Duration::from_secs(5), Duration::from_hours(24 * 30))
}

/// MiB a second, as bytes.
pub(super) fn rate(text: &str) -> Parsed<u32> {
    let most = (u32::MAX >> 20) as usize;
    Ok((bounded(text, 1, most)? as u32) << 20)
}

#[expect(clippy::unnecessary_wraps, reason = "all parsers have this form")]
pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    Ok(text.into())
}

/// The certificates of a file, and nothing else that it has: they are shown to everybody.
pub(super) fn certificates(text: &str) -> Parsed<String> {
    let file = read(text)?;
    let blocks = file.split(BEGIN_CERTIFICATE).skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once(END_CERTIFICATE));
    let letter = |c: char| c.is_ascii_alphanumeric() || "+/=\r\n".contains(c);
    let blocks: Vec<&str> = blocks.map(|(block, _)| block).collect();
    match !blocks.is_empty() && blocks.iter().all(|block| block.chars().all(letter)) {
        true => Ok(blocks
            .iter()
            .map(|block| format!("{BEGIN_CERTIFICATE}{block}{END_CERTIFICATE}\n"))
            .collect()),
        false => Err("has no certificate in PEM format".into()),
    }
}

const BEGIN_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
const END_CERTIFICATE: &str = "-----END CERTIFICATE-----";
/// All keys of a file: while keys change, releases are signed by either.
pub(super) fn release_keys(text: &str) -> Parsed<Vec<PublicKey>> {
    PublicKey::all_from_pem(&read(text)?).map_err(|error| format!("has {error}"))
}

fn read(text: &str) -> Parsed<String> {
    fs::read_to_string(text).map_err(|error| format!("cannot be read: {error}"))
}

/// It stands in shell scripts and commands to copy, so its letters are few.
pub(super) fn address(text: &str) -> Parsed<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    match text.len() <= 255 && text.chars().all(allowed) {
        true => Ok(text.into()),
        false => Err("is not an address: host or host:port".into()),
    }
}
