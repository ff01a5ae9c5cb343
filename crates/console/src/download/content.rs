//! `/download/{sha256}`: the agent's program by its content, as the signed manifest of an update names it.
//!
//! The folder has no index that could go stale: the checksums of its programs are kept in memory, and computed once for each.

use std::{io::SeekFrom, path::Path as FilePath};

use axum::{
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};
use svc_common::sync::lock;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
    sync::Mutex,
};

use super::{
    DOWNLOAD, MISSING, SUMS, UNREADABLE, checksum, open, paced,
    range::{Part, wanted},
};
use crate::{
    error::AppError,
    releases::{self, ARCHS, FILES},
    session::Client,
    slots::hold,
    state::App,
};

/// After a start a whole fleet may ask at once: the files are read by one of them.
static SEARCH: Mutex<()> = Mutex::const_new(());

pub async fn program(
    State(app): State<App>,
    Client(address): Client,
    Path(sha256): Path<String>,
    asked: HeaderMap,
) -> Result<Response, AppError> {
    let digit = |letter: u8| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter);
    if sha256.len() != 64 || !sha256.bytes().all(digit) {
        return Err(MISSING);
    }
    let slot = app.clients.download(address)?;
    let (mut file, length) = find(&app.install.releases.folder, &sha256).await?;
    let tag = format!("\"{sha256}\"");
    let (status, first, size, range) = match wanted(&asked, length, &tag) {
        Part::Whole => (StatusCode::OK, 0, length, None),
        Part::Of(first, last) => {
            let range = format!("bytes {first}-{last}/{length}");
            let status = StatusCode::PARTIAL_CONTENT;
            (status, first, last - first + 1, Some(range))
        }
        Part::Nowhere => {
            let range = Some(format!("bytes */{length}"));
            (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0, range)
        }
    };
    let found = file.seek(SeekFrom::Start(first)).await;
    found.map_err(|_| UNREADABLE)?;
    let range = range.map(|range| (header::CONTENT_RANGE, range));
    let headers = [
        (header::CONTENT_TYPE, DOWNLOAD.to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::ETAG, tag),
        (
            header::CACHE_CONTROL,
            "public, max-age=31536000, immutable".to_owned(),
        ),
    ];
    let body = paced(&app, file.take(size));
    let response = (status, headers, AppendHeaders(range), body).into_response();
    Ok(hold(response, slot))
}

/// The program with this checksum, at its begin, and its length. One that was found before is found without a search.
async fn find(folder: &FilePath, wanted: &str) -> Result<(File, u64), AppError> {
    let known = lock(&SUMS)
        .iter()
        .find(|(path, (_, sum))| {
            sum == wanted && path.ends_with(FILES[0]) && path.starts_with(folder)
        })
        .map(|(path, _)| path.clone());
    if let Some(path) = known
        && let Ok(Some(found)) = if_it_is(&path, wanted).await
    {
        return Ok(found);
    }
    let _one = SEARCH.lock().await;
    let mut answer = MISSING;
    for version in releases::all(folder).await {
        for arch in ARCHS {
            let path = releases::path(folder, [&version, "linux", arch], FILES[0]);
            match if_it_is(&path.ok_or(MISSING)?, wanted).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) | Err(AppError::NotFound(_)) => {}
                Err(error) => answer = error,
            }
        }
    }
    Err(answer)
}

/// What is served is the file that was read, even if another one takes its place meanwhile.
async fn if_it_is(path: &FilePath, wanted: &str) -> Result<Option<(File, u64)>, AppError> {
    let (mut file, metadata) = open(path).await?;
    let sum = checksum(path.to_owned(), &mut file, &metadata).await;
    let sum = sum.map_err(|_| UNREADABLE)?;
    Ok((sum == wanted).then_some((file, metadata.len())))
}
