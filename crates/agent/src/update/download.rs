//! Downloads: HTTP/1.1, resumed where the last attempt ended, and verified before anything else is done with the bytes.
//!
//! A download is a task beside the heartbeats. Free space is checked first, three times the size, because an agent that fills
//! the disk of its host is worse than an old one. No redirect is followed.

use std::{fs, io, os::unix::fs::PermissionsExt, pin::Pin, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper::body::{Body, Incoming};
use svc_release::digest;
use tokio::{
    fs::OpenOptions,
    io::AsyncWriteExt,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    offer::Artefact,
    store::Folder,
    trial::{LONGEST_PAUSE, Waits},
};
use crate::{
    caller::{CallError, Caller},
    wire::ConnectError,
};

/// For the answer, and between two parts of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The shortest pause that a server may ask for: it must not make agents call in a loop.
const SHORTEST_HINT: Duration = Duration::from_secs(5);

/// A download that ended without the file. What has arrived is kept, unless it is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the disk has {free} bytes free, and the update needs {needed}")]
    NoSpace { free: u64, needed: u64 },
    #[error("{0}")]
    Disk(#[from] io::Error),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("the download was interrupted: {0}")]
    Interrupted(#[from] hyper::Error),
    #[error("the server does not answer")]
    NoAnswer,
    #[error("the server answered {status}")]
    Refused {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    #[error("the server sent something other than the file that was signed")]
    Wrong,
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Call(error.into())
    }
}

/// Downloads until the file is there. `tell` hears of each attempt that begins, and of each that failed.
pub async fn obtain(
    artefact: &Artefact,
    caller: &Caller,
    folder: &Folder,
    waits: Waits,
    tell: impl Fn(Option<&str>),
) {
    sleep(waits.first_pause().mul_f64(rand::random())).await;
    for failures in 0_u32.. {
        tell(None);
        let Err(failure) = attempt(artefact, caller, folder).await else {
            return;
        };
        let hint = match &failure {
            Failure::Refused { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = hint.map_or_else(
            || waits.pause(failures),
            |hint| hint.clamp(SHORTEST_HINT.min(waits.pause(0)), LONGEST_PAUSE),
        );
        let pause = pause.mul_f64(rand::random_range(1.0..1.25));
        tracing::warn!(serial = artefact.serial, error = %failure, retry_in = ?pause, "an update was not downloaded");
        tell(Some(&failure.to_string()));
        sleep(pause).await;
    }
}

async fn attempt(artefact: &Artefact, caller: &Caller, folder: &Folder) -> Result<(), Failure> {
    let (place, wanted) = (folder.clone(), artefact.clone());
    let done = blocking(move || prepare(&place, &wanted)).await?;
    if done < artefact.size {
        timeout(LONGEST_PAUSE, receive(artefact, caller, folder, done))
            .await
            .unwrap_or(Err(Failure::NoAnswer))?;
    }
    let (place, wanted) = (folder.clone(), artefact.clone());
    blocking(move || finish(&place, &wanted)).await
}

/// The disk may stall, and the heartbeats must not.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

/// The length of what an earlier attempt left.
fn prepare(folder: &Folder, artefact: &Artefact) -> Result<u64, Failure> {
    folder.create(&artefact.manifest, &artefact.signature)?;
    let done = fs::metadata(folder.part()).map_or(0, |found| found.len());
    let done = if done > artefact.size { 0 } else { done };
    let disk = rustix::fs::statvfs(folder.program().parent().unwrap_or(&folder.part()))
        .map_err(io::Error::from)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = (3 * artefact.size).saturating_sub(done);
    match free < needed {
        true => Err(Failure::NoSpace { free, needed }),
        false => Ok(done),
    }
}

async fn receive(
    artefact: &Artefact,
    caller: &Caller,
    folder: &Folder,
    done: u64,
) -> Result<(), Failure> {
    let source = &artefact.source;
    let mut client = caller
        .downloads()?
        .download(&source.address, source.is_tls)
        .await?;
    let mut request = Request::get(source.path(&artefact.sha256))
        .header(header::HOST, source.address.to_string())
        .header(header::USER_AGENT, "svc-agent");
    if done > 0 {
        request = request.header(header::RANGE, format!("bytes={done}-"));
    }
    let request = request.body(String::new()).map_err(io::Error::other)?;
    let answer = timeout(PATIENCE, client.requests.send_request(request)).await;
    let answer = answer.map_err(|_| Failure::NoAnswer)??;
    let from = start_of(&answer, done)?;
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    let mut file = options.open(folder.part()).await?;
    file.set_len(from).await?;
    let mut left = artefact.size - from;
    let mut body = answer.into_body();
    while let Some(bytes) = part(&mut body).await? {
        left = left.checked_sub(bytes.len() as u64).ok_or(Failure::Wrong)?;
        file.write_all(&bytes).await?;
    }
    file.flush().await?;
    match left {
        0 => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// Where the answer begins in the file. A server that knows no ranges sends everything.
fn start_of(answer: &Response<Incoming>, done: u64) -> Result<u64, Failure> {
    match answer.status() {
        StatusCode::OK => Ok(0),
        StatusCode::PARTIAL_CONTENT if done > 0 && begins_at(answer.headers(), done) => Ok(done),
        StatusCode::PARTIAL_CONTENT => Err(Failure::Wrong),
        status => Err(Failure::Refused {
            status,
            retry_after: retry_after(answer.headers()),
        }),
    }
}

/// `bytes 100-199/200`
fn begins_at(headers: &HeaderMap, done: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE);
    let range = range
        .and_then(|range| range.to_str().ok())
        .unwrap_or_default();
    range
        .strip_prefix("bytes ")
        .is_some_and(|range| range.starts_with(&format!("{done}-")))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// The next bytes of the body; `None` at its end.
async fn part(body: &mut Incoming) -> Result<Option<hyper::body::Bytes>, Failure> {
    loop {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        match timeout(PATIENCE, next).await {
            Err(_) => return Err(Failure::NoAnswer),
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => {
                if let Ok(bytes) = frame?.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Compares the file with the manifest. A wrong one is deleted, so that the next attempt does not continue it.
fn finish(folder: &Folder, artefact: &Artefact) -> Result<(), Failure> {
    let part = fs::File::open(folder.part())?;
    if digest(&part)? != (artefact.size, artefact.sha256.clone()) {
        fs::remove_file(folder.part())?;
        return Err(Failure::Wrong);
    }
    part.set_permissions(fs::Permissions::from_mode(0o700))?;
    part.sync_all()?;
    fs::rename(folder.part(), folder.program())?;
    Ok(folder.sync()?)
}
