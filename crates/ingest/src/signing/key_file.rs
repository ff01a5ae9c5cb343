//! The file that holds the signing key: read with care, created once.
//!
//! Creation is atomic: the key is written whole to a temporary file beside the
//! target and then *linked* to its name, which fails if the name exists. Several
//! instances that start at once on one empty path therefore end with one key.
//! A file that is there is never written to, however bad it is.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, StatVfsMountFlags, fstatvfs};
use zeroize::Zeroizing;

use super::{KeyPemError, SigningKey, pem};

/// Far above any 8192-bit key with its comments.
const MAX_FILE_SIZE: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is a folder: name the key file in it", path = path.display())]
    Folder { path: PathBuf },
    #[error("{path} is not a regular file", path = path.display())]
    NotAFile { path: PathBuf },
    #[error("{path} has more than {MAX_FILE_SIZE} bytes: it cannot be a key", path = path.display())]
    TooLarge { path: PathBuf },
    #[error("{path} is a link to {target}, which does not exist", path = path.display(), target = target.display())]
    DanglingLink { path: PathBuf, target: PathBuf },
    #[error(
        "{path} is open to every user of this machine (mode {mode:04o}): run `chmod 600 {path}`",
        path = path.display()
    )]
    OpenToOthers { path: PathBuf, mode: u32 },
    #[error("{path} {source}", path = path.display())]
    Bad { path: PathBuf, source: KeyPemError },
    #[error(
        "{path} cannot be created, because its folder does not exist: run `mkdir -p -m 700 {folder}`",
        path = path.display(), folder = folder.display()
    )]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{path} cannot be created: {source}", path = path.display())]
    NotCreated { path: PathBuf, source: io::Error },
}

/// Reads the key; `None` when there is no file by that name.
pub fn read(path: &Path) -> Result<Option<SigningKey>, KeyFileError> {
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    if metadata.is_dir() {
        return Err(KeyFileError::Folder { path: path.into() });
    }
    if !metadata.is_file() {
        return Err(KeyFileError::NotAFile { path: path.into() });
    }
    check_mode(path, &file, metadata.mode())?;
    let text = read_bounded(path, file)?;
    pem::parse(&text)
        .map(Some)
        .map_err(|source| KeyFileError::Bad {
            path: path.into(),
            source,
        })
}

/// Whether the file is good, or missing but can be created: what can be known
/// before the database has been asked about siblings.
pub fn check(path: &Path) -> Result<(), KeyFileError> {
    match read(path)? {
        Some(_) => Ok(()),
        None => folder_of(path).map(drop),
    }
}

/// Creates the file with a new 2048-bit key, or reads the one that another
/// instance has just created.
pub fn create(path: &Path) -> Result<SigningKey, KeyFileError> {
    let not_created = |source| KeyFileError::NotCreated {
        path: path.into(),
        source,
    };
    let folder = folder_of(path)?;
    let (text, key) =
        pem::generate().map_err(|_| not_created(io::Error::other("no key could be generated")))?;
    match write_once(folder, path, &text) {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path)?
            .ok_or_else(|| not_created(io::Error::other("it appeared and vanished again"))),
        Err(error) => Err(not_created(error)),
    }
}

fn folder_of(path: &Path) -> Result<&Path, KeyFileError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(KeyFileError::NoFolder {
            path: path.into(),
            folder: folder.into(),
        });
    }
    Ok(folder)
}

/// The temporary file is 0600 from its first byte and unlinked however this ends.
fn write_once(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = tempfile::Builder::new()
        .prefix(".svc-key-")
        .tempfile_in(folder)?;
    temporary.write_all(text.as_bytes())?;
    temporary.as_file().sync_all()?;
    fs::hard_link(temporary.path(), path)?;
    File::open(folder)?.sync_all()
}

/// `O_NONBLOCK`, so that a FIFO with no writer cannot hang the start.
fn open(path: &Path) -> Result<Option<File>, KeyFileError> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => Err(KeyFileError::DanglingLink {
                path: path.into(),
                target,
            }),
            Err(_) => Ok(None),
        },
        Err(source) => Err(unreadable(path, source)),
    }
}

/// On a read-only mount, as secrets managers make them, nobody can mend the mode: warn.
fn check_mode(path: &Path, file: &File, mode: u32) -> Result<(), KeyFileError> {
    let mode = mode & 0o7777;
    if mode & 0o007 == 0 {
        return Ok(());
    }
    let read_only =
        fstatvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    if !read_only {
        return Err(KeyFileError::OpenToOthers {
            path: path.into(),
            mode,
        });
    }
    tracing::warn!(key.file = %path.display(), "the signing key is open to every user, on a read-only mount");
    Ok(())
}

fn read_bounded(path: &Path, file: File) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let mut text = Zeroizing::new(Vec::with_capacity(8 * 1024));
    file.take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut text)
        .map_err(|source| unreadable(path, source))?;
    if text.len() as u64 > MAX_FILE_SIZE {
        return Err(KeyFileError::TooLarge { path: path.into() });
    }
    Ok(text)
}

fn unreadable(path: &Path, source: io::Error) -> KeyFileError {
    KeyFileError::Unreadable {
        path: path.into(),
        source,
    }
}
