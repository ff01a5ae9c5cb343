//! Serves the agent's releases, and the script that installs it: `/download/svc-agent/…`, `/download/{sha256}` and `/install.sh`.
//!
//! Each file of a release has a checksum at its path with `.sha256` appended.

pub mod content;
mod range;

use std::{
    collections::HashMap,
    fs::Metadata,
    io,
    path::{Path as FilePath, PathBuf},
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
use futures_util::StreamExt;
use svc_common::sync::lock;
use svc_release::PublicKey;
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncReadExt},
};
use tokio_util::io::ReaderStream;

use crate::{
    assets::typed, error::AppError, releases, secret::hex, session::Client, slots::hold, state::App,
};

/// What browsers save. It is never compressed on the fly.
pub const DOWNLOAD: &str = "application/octet-stream";
const CHUNK: usize = 16 * 1024;
const MISSING: AppError = AppError::NotFound("There is no such release.");
const UNREADABLE: AppError = AppError::Internal("a release cannot be read");

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
    let folder = &app.install.releases.folder;
    let path = releases::path(folder, [&version, &os, &arch], name).ok_or(MISSING)?;
    let (mut opened, metadata) = open(&path).await?;
    let slot = app.clients.download(address)?;
    if sum {
        let sum = checksum(path, &mut opened, &metadata).await;
        let sum = sum.map_err(|_| UNREADABLE)?;
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
    let response = (headers, paced(&app, opened)).into_response();
    Ok(hold(response, slot))
}

/// The checksums of a whole release, or their signature.
pub async fn sums(
    State(app): State<App>,
    Client(address): Client,
    Path((version, file)): Path<(String, String)>,
) -> Result<Response, AppError> {
    let folder = &app.install.releases.folder;
    let path = releases::sums_path(folder, &version, &file).ok_or(MISSING)?;
    let (opened, _) = open(&path).await?;
    let slot = app.clients.download(address)?;
    let kind = [(header::CONTENT_TYPE, DOWNLOAD)];
    let response = (kind, Body::from_stream(ReaderStream::new(opened))).into_response();
    Ok(hold(response, slot))
}

/// A file that cannot be read is not a file that is missing: `/install.sh` goes another way only for the latter.
async fn open(path: &FilePath) -> Result<(File, Metadata), AppError> {
    let opened = async {
        let file = File::open(path).await?;
        let metadata = file.metadata().await?;
        Ok::<_, io::Error>((file, metadata))
    };
    match opened.await {
        Ok((file, metadata)) if metadata.is_file() => Ok((file, metadata)),
        Ok(_) => Err(MISSING),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Err(MISSING),
            _ => Err(UNREADABLE),
        },
    }
}

/// A file's bytes, at the pace that all downloads share.
fn paced(app: &App, file: impl AsyncRead + Send + 'static) -> Body {
    let throttle = app.throttle.clone();
    let chunks = ReaderStream::with_capacity(file, CHUNK).then(move |chunk| {
        let throttle = throttle.clone();
        async move {
            if let Ok(chunk) = &chunk {
                throttle.take(chunk.len()).await;
            }
            chunk
        }
    });
    Body::from_stream(chunks)
}

async fn checksum(path: PathBuf, file: &mut File, metadata: &Metadata) -> io::Result<String> {
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

async fn digest(file: &mut File) -> io::Result<String> {
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
    console_ca: &'a str,
    release_keys: &'a str,
    version: &'a str,
    /// The package's unit, with the path of the binary that the script installs.
    unit: String,
}

const UNIT: &str = include_str!("../../../packaging/systemd/svc-agent.service");

pub async fn script(State(app): State<App>) -> Result<Response, AppError> {
    let origin = app.web.origin();
    let install = &app.install;
    let keys: String = install
        .releases
        .keys
        .iter()
        .map(PublicKey::to_pem)
        .collect();
    let script = Script {
        base_url: &origin,
        ingest_address: &install.ingest_address,
        ca: install.ingest_ca.as_deref().unwrap_or_default().trim(),
        console_ca: install.console_ca.as_deref().unwrap_or_default().trim(),
        release_keys: keys.trim_end(),
        version: &releases::newest(&install.releases.folder)
            .await
            .unwrap_or_default(),
        unit: UNIT
            .replace("=/usr/bin/svc-agent run", "=/usr/local/bin/svc-agent run")
            .trim_end()
            .to_owned(),
    };
    Ok(typed("text/x-shellscript; charset=utf-8", script.render()?))
}
