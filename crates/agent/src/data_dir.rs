//! The agent's data folder: private to its user, locked against a second agent, and with
//! files that are replaced atomically.
//!
//! ```text
//! lock            locked while an agent runs; contains its process id
//! identity.pem    the private key and its certificate: the agent's identity
//! identity.next.pem   the key that will take its place, until the service has welcomed it
//! successor.pem   the new key of a clone, until the clone has changed to it
//! former-*.pem    keys that clones have set aside
//! state.json      agent id, JWT, interval, the service's time
//! settings        the settings that the service has sent last
//! status.json     what `svc-agent status` shows; holds no secret
//! updates.json    what is known about updates; versions/ has the versions that were downloaded
//! trust.pem       trust anchors that the service has announced
//! spool/KEY/      samples that are not acknowledged yet, by the first key of the agent they belong to
//! ```

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use rustix::process::{Uid, geteuid};

pub const IDENTITY: &str = "identity.pem";
pub const NEXT_IDENTITY: &str = "identity.next.pem";
pub const SUCCESSOR: &str = "successor.pem";
pub const STATE: &str = "state.json";
pub const SETTINGS: &str = "settings";
pub const STATUS: &str = "status.json";
pub const UPDATES: &str = "updates.json";
pub const TRUST: &str = "trust.pem";
const LOCK: &str = "lock";

/// Far above the size of any of these files.
const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("{path} is in use by another svc-agent (process {pid})", path = path.display())]
    InUse { path: PathBuf, pid: String },
    #[error("{path} is open to other users, and this user cannot change that: run `chmod 700 {path}`", path = path.display())]
    OpenToOthers { path: PathBuf },
    #[error("{path} belongs to another user (uid {uid}), and files that root leaves in it would stop that user's agent: start the unit, or run this as that user", path = path.display())]
    ForeignOwner { path: PathBuf, uid: u32 },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The folder, locked by this process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the folder if it is missing, makes it private, and locks it.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(io_error(path))?;
        check_owner(path, geteuid())?;
        make_private(path)?;
        Ok(Self {
            path: path.into(),
            _lock: lock(path)?,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the samples of this key.
    pub fn spool(&self, fingerprint: &str) -> PathBuf {
        self.path.join("spool").join(short(fingerprint))
    }

    /// The content of a file; `None` if it is missing. A file that other users can read is
    /// made private first.
    pub fn read(&self, name: &str) -> Result<Option<String>, DataDirError> {
        let path = self.path.join(name);
        let read = || {
            let file = File::open(&path)?;
            if file.metadata()?.mode() & 0o077 != 0 {
                tracing::warn!(path = %path.display(), "a file was open to other users: making it private");
                file.set_permissions(fs::Permissions::from_mode(0o600))?;
            }
            let mut text = String::new();
            file.take(MAX_FILE).read_to_string(&mut text).map(|_| text)
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&path)(error)),
        }
    }

    /// Replaces a file that must survive a power failure: the new content is synced under a
    /// temporary name, then renamed, and the folder is synced.
    pub fn write(&self, name: &str, text: &str) -> Result<(), DataDirError> {
        self.replace(name, text, true)
    }

    /// A file that is not durable may be lost in a power failure; nothing waits for the disk.
    pub fn replace(&self, name: &str, text: &str, durable: bool) -> Result<(), DataDirError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!(".{name}.new"));
        let write = || {
            let mut file = private().truncate(true).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            if durable {
                file.sync_all()?;
            }
            fs::rename(&temporary, &path)
        };
        write().map_err(io_error(&path))?;
        if durable { self.sync() } else { Ok(()) }
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<(), DataDirError> {
        let path = self.path.join(from);
        fs::rename(&path, self.path.join(to)).map_err(io_error(&path))?;
        self.sync()
    }

    /// Deletes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<(), DataDirError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error(&path)(error)),
            Ok(()) => self.sync(),
        }
    }

    /// When a file was last written, if that is known.
    pub fn modified(&self, name: &str) -> Option<Timestamp> {
        let modified = fs::metadata(self.path.join(name)).and_then(|file| file.modified());
        Timestamp::try_from(modified.ok()?).ok()
    }

    /// Deletes former keys, and all samples but those in this folder.
    pub fn delete_former(&self, spool: &str) -> Result<(), DataDirError> {
        let is_former = |name: &str| name.starts_with("former-") && name.ends_with(".pem");
        for (name, path) in entries(&self.path)? {
            if is_former(&name) {
                fs::remove_file(&path).map_err(io_error(&path))?;
            }
        }
        for (name, path) in entries(&self.path.join("spool"))? {
            if name != spool {
                fs::remove_dir_all(&path).map_err(io_error(&path))?;
            }
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), DataDirError> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(io_error(&self.path))
    }
}

/// The content of a file, whether or not an agent runs; `None` if it is missing.
pub fn content(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// The id of the process that has locked the folder, if there is one.
pub fn holder(path: &Path) -> Option<String> {
    let lock = File::open(path.join(LOCK)).ok()?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Some(holder_id(path)),
        _ => None,
    }
}

/// The part of a fingerprint that `svc-ingest agent list` shows.
pub fn short(fingerprint: &str) -> &str {
    fingerprint.get(..16).unwrap_or(fingerprint)
}

/// A read-only disk does not keep the agent from running: its key is there, and samples go
/// through memory.
fn lock(path: &Path) -> Result<File, DataDirError> {
    let opened = private().open(path.join(LOCK));
    let is_read_only = |error: &io::Error| error.kind() == io::ErrorKind::ReadOnlyFilesystem;
    let mut lock = match opened {
        Err(error) if is_read_only(&error) => File::open(path.join(LOCK)),
        opened => opened,
    }
    .map_err(io_error(path))?;
    match lock_with_retries(&lock) {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(io_error(path)(error)),
        Err(TryLockError::WouldBlock) => {
            let (path, pid) = (path.into(), holder_id(path));
            return Err(DataDirError::InUse { path, pid });
        }
    }
    // The id is for people; a full or read-only disk does not take it.
    if lock.set_len(0).is_ok() {
        let _ = write!(lock, "{}", std::process::id());
    }
    Ok(lock)
}

/// Retries a little, because [`holder`] takes the lock for a moment.
fn lock_with_retries(lock: &File) -> Result<(), TryLockError> {
    for _ in 0..5 {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            locked => return locked,
        }
    }
    lock.try_lock()
}

/// The names and paths in a folder; none if it is missing.
fn entries(path: &Path) -> Result<Vec<(String, PathBuf)>, DataDirError> {
    let found = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(io_error(path))?,
    };
    let named = found.flatten().map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, entry.path())
    });
    Ok(named.collect())
}

fn holder_id(path: &Path) -> String {
    let id = fs::read_to_string(path.join(LOCK)).unwrap_or_default();
    if id.is_empty() { "unknown".into() } else { id }
}

fn make_private(path: &Path) -> Result<(), DataDirError> {
    let close = || {
        if fs::metadata(path)?.mode() & 0o077 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    };
    close().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => DataDirError::OpenToOthers { path: path.into() },
        _ => io_error(path)(error),
    })
}

/// Root may write everywhere, and the files that it leaves would stop the owner's agent.
fn check_owner(path: &Path, user: Uid) -> Result<(), DataDirError> {
    let uid = fs::metadata(path).map_err(io_error(path))?.uid();
    let is_foreign = user.is_root() && uid != user.as_raw();
    let path = path.into();
    match is_foreign {
        true => Err(DataDirError::ForeignOwner { path, uid }),
        false => Ok(()),
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> DataDirError {
    move |source| DataDirError::Io {
        path: path.into(),
        source,
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_and_its_files_are_private() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/agent");
        let dir = DataDir::open(&path).unwrap();
        dir.write(STATE, "{}").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(STATE))), (0o700, 0o600));

        fs::set_permissions(path.join(STATE), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(dir.read(STATE).unwrap().as_deref(), Some("{}"));
        assert_eq!(mode(&path.join(STATE)), 0o600);
    }

    /// It tests the same whether or not root runs it.
    #[test]
    fn only_root_is_refused_and_only_on_the_folder_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let owner = fs::metadata(folder.path()).unwrap().uid();
        let nobody = Uid::from_raw(65_534);
        assert!(check_owner(folder.path(), Uid::from_raw(owner)).is_ok());
        assert!(check_owner(folder.path(), nobody).is_ok());
        if owner == 0 {
            std::os::unix::fs::chown(folder.path(), Some(65_534), None).unwrap();
        }
        let refused = check_owner(folder.path(), Uid::ROOT).unwrap_err();
        assert!(matches!(refused, DataDirError::ForeignOwner { .. }));
    }

    #[test]
    fn a_second_agent_is_refused_with_the_process_id_of_the_first() {
        let parent = tempfile::tempdir().unwrap();
        let held = DataDir::open(parent.path()).unwrap();
        let refused = DataDir::open(parent.path()).unwrap_err().to_string();
        assert!(
            refused.contains(&std::process::id().to_string()),
            "{refused}"
        );
        assert!(holder(parent.path()).is_some());
        drop(held);
        assert!(holder(parent.path()).is_none());
        assert!(DataDir::open(parent.path()).is_ok());
    }
}
