//! The agent's releases, and the script that installs it: `/download/svc-agent/…` and `/install.sh`.
//!
//! Releases lie in a folder: `{version}/{os}/{arch}/` with `svc-agent` and, where there are packages,
//! `svc-agent.deb` and `svc-agent.rpm`. Each has a checksum at its path with `.sha256` appended. Names
//! are checked letter by letter before they become a path.

use std::{
    collections::HashMap,
    fs::Metadata,
    io,
    path::PathBuf,
    sync::{LazyLock, Mutex},
    time::SystemTime,
};

use askama::Template;
use aws_lc_rs::digest::{Context, SHA256};
use axum::{
    body::Body,
    extract::{Path, State},
    http::header,
    response::{IntoResponse, Response},
};
use svc_common::sync::lock;
use tokio::{fs::File, io::AsyncReadExt};
use tokio_util::io::ReaderStream;

use crate::{
    assets::typed, config::Install, error::AppError, secret::hex, session::Client, slots::hold,
    state::App,
};

const FILES: [&str; 3] = ["svc-agent", "svc-agent.deb", "svc-agent.rpm"];
/// What browsers save. It is never compressed on the fly.
pub const DOWNLOAD: &str = "application/octet-stream";
const CHUNK: usize = 16 * 1024;
const MISSING: AppError = AppError::NotFound("There is no such release.");

/// The checksums of files, each with the length and the time of the file that was read. Anyone may ask for one, and
/// computing it reads the whole file.
static SUMS: LazyLock<Mutex<HashMap<PathBuf, (Version, String)>>> = LazyLock::new(Mutex::default);
type Version = (u64, Option<SystemTime>);

pub async fn release(
    State(app): State<App>,
    Client(address): Client,
    Path((version, os, arch, file)): Path<(String, String, String, String)>,
) -> Result<Response, AppError> {
    let (name, sum) = match file.strip_suffix(".sha256") {
        Some(name) => (name, true),
        None => (file.as_str(), false),
    };
    let path = path(&app.install, [&version, &os, &arch], name).ok_or(MISSING)?;
    let opened = File::open(&path).await.map_err(|_| MISSING)?;
    let metadata = opened.metadata().await.map_err(|_| MISSING)?;
    if !metadata.is_file() {
        return Err(MISSING);
    }
    let slot = app.clients.download(address)?;
    if sum {
        let sum = checksum(path, opened, &metadata).await;
        let sum = sum.map_err(|_| AppError::Internal("a release cannot be read"))?;
        return Ok(typed(
            "text/plain; charset=utf-8",
            format!("{sum}  {name}\n"),
        ));
    }
    let headers = [
        (header::CONTENT_TYPE, DOWNLOAD.to_owned()),
        (header::CONTENT_LENGTH, metadata.len().to_string()),
        (header::CACHE_CONTROL, "public, max-age=3600".to_owned()),
    ];
    let chunks = ReaderStream::with_capacity(opened, CHUNK);
    let response = (headers, Body::from_stream(chunks)).into_response();
    Ok(hold(response, slot))
}

/// The path of a release's file, if every name has the form of one.
fn path(install: &Install, folders: [&str; 3], file: &str) -> Option<PathBuf> {
    let plain = |name: &str| {
        (1..=64).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_letter)
    };
    let known = FILES.contains(&file) && folders.iter().all(|name| plain(name));
    let base = install.downloads.as_ref().filter(|_| known)?;
    Some(base.join(folders.join("/")).join(file))
}

/// Of a name that becomes a part of a path.
fn is_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._+~-".contains(letter)
}

async fn checksum(path: PathBuf, file: File, metadata: &Metadata) -> io::Result<String> {
    let version = (metadata.len(), metadata.modified().ok());
    if let Some((known, sum)) = lock(&SUMS).get(&path)
        && *known == version
    {
        return Ok(sum.clone());
    }
    let sum = digest(file).await?;
    lock(&SUMS).insert(path, (version, sum.clone()));
    Ok(sum)
}

async fn digest(mut file: File) -> io::Result<String> {
    let (mut context, mut chunk) = (Context::new(&SHA256), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk).await? {
            0 => return Ok(hex(context.finish().as_ref())),
            length => context.update(&chunk[..length]),
        }
    }
}

#[derive(Template)]
#[template(path = "install.sh", escape = "none")]
struct Script<'a> {
    base_url: &'a str,
    ingest_address: &'a str,
    ca: &'a str,
    version: &'a str,
    /// The package's unit, with the path of the binary that the script installs.
    unit: String,
}

const UNIT: &str = include_str!("../../../packaging/systemd/svc-agent.service");

/// The newest release by its folder's name.
pub async fn script(State(app): State<App>) -> Result<Response, AppError> {
    let origin = app.web.origin();
    let script = Script {
        base_url: &origin,
        ingest_address: &app.install.ingest_address,
        ca: app.install.ingest_ca.as_deref().unwrap_or_default().trim(),
        version: &newest(&app.install).await.unwrap_or_default(),
        unit: UNIT
            .replace("=/usr/bin/svc-agent run", "=/usr/local/bin/svc-agent run")
            .trim_end()
            .to_owned(),
    };
    Ok(typed("text/x-shellscript; charset=utf-8", script.render()?))
}

pub async fn newest(install: &Install) -> Option<String> {
    let mut entries = tokio::fs::read_dir(install.downloads.as_ref()?)
        .await
        .ok()?;
    let mut versions = Vec::new();
    while let Ok(Some(entry)) = entries.next_entry().await {
        let name = entry.file_name().into_string().ok();
        versions.extend(name.filter(|name| name.starts_with(|c: char| c.is_ascii_digit())));
    }
    versions.retain(|version: &String| version.chars().all(is_letter));
    versions.into_iter().max_by_key(|version| numbers(version))
}

/// `0.10.2` is newer than `0.9.0`.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(version: &str, file: &str) -> Option<PathBuf> {
        let install = Install {
            downloads: Some("/srv/releases".into()),
            ingest_address: "localhost:9443".into(),
            ingest_ca: None,
        };
        path(&install, [version, "linux", "x86_64"], file)
    }

    #[test]
    fn only_names_of_releases_become_paths() {
        let good = find("0.2.0-rc.1", "svc-agent").unwrap();
        assert_eq!(
            good.to_str(),
            Some("/srv/releases/0.2.0-rc.1/linux/x86_64/svc-agent")
        );
        for version in [
            "",
            "..",
            ".",
            "../../etc",
            "a/b",
            "a\0b",
            ".hidden",
            &"1".repeat(65),
        ] {
            assert_eq!(find(version, "svc-agent"), None, "{version}");
        }
        assert_eq!(find("0.2.0", "passwd"), None);
    }
}
