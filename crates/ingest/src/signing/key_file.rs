//! The file of the signing key: how it is read, checked and created.
//!
//! **Invariant.** An existing file is never written to, whatever it contains: a lost key would invalidate the JWTs of the
//! whole fleet. **Danger.** Several instances may start at the same time on one empty path, and a process may die while
//! it writes. **Why this is safe.** The complete key is written to a temporary file in the same folder and synced, and then
//! *linked* to its name. A link is atomic and fails if the name exists, so that one instance creates the file and the
//! others read it.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, chown},
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, StatVfsMountFlags, fstatvfs};
use zeroize::Zeroizing;

use super::{KeyPemError, PublicKey, SigningKey, pem};

/// Far above the size of an 8192-bit key with comments.
const MAX_FILE_SIZE: u64 = 64 * 1024;

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} {problem}", path = path.display())]
pub struct KeyFileError {
    path: PathBuf,
    problem: Problem,
}

/// Continues a sentence that begins with the path.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("does not exist")]
    Missing,
    #[error("is a folder: name the key file in it")]
    Folder,
    #[error("is not a regular file")]
    NotAFile,
    #[error("has more than {MAX_FILE_SIZE} bytes: it cannot be a key")]
    TooLarge,
    #[error("is a link to {}, which does not exist", .0.display())]
    DanglingLink(PathBuf),
    #[error("is open to every user of this machine (mode {mode:04o}): run `chmod 600 {path}`", path = path.display())]
    OpenToOthers { mode: u32, path: PathBuf },
    #[error("{0}")]
    Invalid(KeyPemError),
    #[error("cannot be created, because its folder does not exist: run `mkdir -p -m 700 {}`", .0.display())]
    NoFolder(PathBuf),
    #[error("cannot be created: {0}")]
    NotCreated(io::Error),
    #[error(
        "was created, but cannot be given to the owner of the old key ({0}): do so before the service reads it"
    )]
    NotGiven(io::Error),
}

impl Problem {
    fn of(self, path: &Path) -> KeyFileError {
        KeyFileError {
            path: path.into(),
            problem: self,
        }
    }
}

/// Reads the key. `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<SigningKey>, KeyFileError> {
    read_key(path).map_err(|problem| problem.of(path))
}

/// Reads the public half of a key. The file may hold a private key too, and must exist.
pub fn read_public(path: &Path) -> Result<PublicKey, KeyFileError> {
    read_public_key(path).map_err(|problem| problem.of(path))
}

/// Checks that the file is valid, or that it is missing and its folder exists. Whether the key may be created depends on
/// the other instances, and so on the database.
pub fn check(path: &Path) -> Result<(), KeyFileError> {
    match read(path)? {
        Some(_) => Ok(()),
        None => folder_of(path)
            .map(drop)
            .map_err(|problem| problem.of(path)),
    }
}

/// Creates the file with a new 2048-bit key, or reads the file that another instance has just created.
pub fn create(path: &Path) -> Result<SigningKey, KeyFileError> {
    create_key(path).map_err(|problem| problem.of(path))
}

/// Creates a file with a new key in the folder of `old`, named after the key's id, and gives it to the owner of `old`.
/// An administrator may run this as root, and the service must be able to read the file.
pub fn create_beside(old: &Path) -> Result<(PathBuf, SigningKey), KeyFileError> {
    let (text, key) = generate().map_err(|problem| problem.of(old))?;
    let stem = old.file_stem().unwrap_or_default().to_string_lossy();
    let start: String = key.kid().chars().take(8).collect();
    let path = old.with_file_name(format!("{stem}-{start}.pem"));
    let created = folder_of(&path)
        .and_then(|folder| write_once(folder, &path, &text).map_err(Problem::NotCreated))
        .and_then(|()| give_to_owner_of(old, &path).map_err(Problem::NotGiven));
    match created {
        Ok(()) => Ok((path, key)),
        Err(problem) => Err(problem.of(&path)),
    }
}

fn read_key(path: &Path) -> Result<Option<SigningKey>, Problem> {
    let Some((file, metadata)) = open(path)? else {
        return Ok(None);
    };
    check_mode(path, &file, metadata.mode())?;
    let key = pem::parse(&read_bounded(file)?);
    key.map(Some).map_err(Problem::Invalid)
}

/// A file with a public key alone may be readable by all users.
fn read_public_key(path: &Path) -> Result<PublicKey, Problem> {
    let (file, metadata) = open(path)?.ok_or(Problem::Missing)?;
    let text = read_bounded(&file)?;
    match pem::parse(&text) {
        Err(KeyPemError::PublicKey) => pem::parse_public(&text).map_err(Problem::Invalid),
        Err(error) => Err(Problem::Invalid(error)),
        Ok(key) => check_mode(path, &file, metadata.mode()).map(|()| key.public),
    }
}

fn generate() -> Result<(Zeroizing<String>, SigningKey), Problem> {
    let not_generated = |_| io::Error::other("no key could be generated");
    pem::generate().map_err(|error| Problem::NotCreated(not_generated(error)))
}

fn create_key(path: &Path) -> Result<SigningKey, Problem> {
    let folder = folder_of(path)?;
    let (text, key) = generate()?;
    match write_once(folder, path, &text) {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let removed = "another process created it and removed it again";
            read_key(path)?.ok_or_else(|| Problem::NotCreated(io::Error::other(removed)))
        }
        Err(error) => Err(Problem::NotCreated(error)),
    }
}

fn folder_of(path: &Path) -> Result<&Path, Problem> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(Problem::NoFolder(folder.into())),
    }
}

/// The temporary file has mode 0600 from the start, and is removed however this function ends.
fn write_once(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = tempfile::Builder::new()
        .prefix(".svc-key-")
        .tempfile_in(folder)?;
    temporary.write_all(text.as_bytes())?;
    temporary.as_file().sync_all()?;
    fs::hard_link(temporary.path(), path)?;
    File::open(folder)?.sync_all()
}

fn give_to_owner_of(old: &Path, path: &Path) -> io::Result<()> {
    let (wanted, found) = (fs::metadata(old)?, fs::metadata(path)?);
    match (wanted.uid(), wanted.gid()) == (found.uid(), found.gid()) {
        true => Ok(()),
        false => chown(path, Some(wanted.uid()), Some(wanted.gid())),
    }
}

/// Opens a regular file. `None` if there is none.
fn open(path: &Path) -> Result<Option<(File, Metadata)>, Problem> {
    let Some(file) = open_any(path)? else {
        return Ok(None);
    };
    let metadata = file.metadata().map_err(Problem::Unreadable)?;
    match (metadata.is_dir(), metadata.is_file()) {
        (true, _) => Err(Problem::Folder),
        (_, false) => Err(Problem::NotAFile),
        (_, true) => Ok(Some((file, metadata))),
    }
}

/// Opens with `O_NONBLOCK`: a FIFO without a writer would block the start.
fn open_any(path: &Path) -> Result<Option<File>, Problem> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => Err(Problem::DanglingLink(target)),
            Err(_) => Ok(None),
        },
        Err(error) => Err(Problem::Unreadable(error)),
    }
}

/// Refuses a file that every user can read. On a read-only mount, as secret managers provide them, no user can change the
/// mode, so there it is only a warning.
fn check_mode(path: &Path, file: &File, mode: u32) -> Result<(), Problem> {
    let mode = mode & 0o7777;
    if mode & 0o007 == 0 {
        return Ok(());
    }
    let read_only =
        fstatvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    if !read_only {
        return Err(Problem::OpenToOthers {
            mode,
            path: path.into(),
        });
    }
    tracing::warn!(key.file = %path.display(), "the signing key is open to every user, on a read-only mount");
    Ok(())
}

fn read_bounded(file: impl Read) -> Result<Zeroizing<Vec<u8>>, Problem> {
    let mut text = Zeroizing::new(Vec::with_capacity(8 * 1024));
    file.take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut text)
        .map_err(Problem::Unreadable)?;
    match text.len() as u64 > MAX_FILE_SIZE {
        true => Err(Problem::TooLarge),
        false => Ok(text),
    }
}
