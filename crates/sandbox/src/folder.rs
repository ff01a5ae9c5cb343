//! A temporary folder that is removed in every case.
//!
//! Invariant: while a process uses a folder, its file `lock` is locked. The lock belongs to the
//! open file, and servers inherit that file as their standard input, so it is free only when we and
//! they have ended. A killed process removes nothing; the next one that starts removes the folders
//! whose lock is free.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::programs::User;

const PREFIX: &str = "svc-sandbox-";
/// The name of a folder before it is locked, which no sweep looks at.
const UNLOCKED_PREFIX: &str = ".new-svc-sandbox-";

/// A file system in memory, where Linux has one.
const MEMORY: &str = "/dev/shm";
/// Below this much room there, a folder goes to the disk.
const ROOM: u64 = 6 << 30;

/// Where a temporary folder is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Disk,
    /// In memory, if there is room and `TMPDIR` names no other place.
    Memory,
}

impl Medium {
    fn parent(self) -> PathBuf {
        let unset = std::env::var_os("TMPDIR").is_none();
        match self {
            Medium::Memory if unset && has_room(Path::new(MEMORY)) => MEMORY.into(),
            _ => std::env::temp_dir(),
        }
    }
}

/// A container may have a small one.
fn has_room(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|volume| volume.f_bavail * volume.f_frsize >= ROOM)
}

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
}

impl Folder {
    fn new(medium: Medium) -> anyhow::Result<Folder> {
        let parent = medium.parent();
        sweep(&parent);
        Folder::create(&parent).with_context(|| format!("a folder in {}", parent.display()))
    }

    /// The given folder, or `name` in a new temporary one, which the caller must keep.
    pub fn given_or_new(
        given: Option<PathBuf>,
        name: &str,
        medium: Medium,
    ) -> anyhow::Result<(PathBuf, Option<Folder>)> {
        if let Some(given) = given {
            return Ok((canonical(&given)?, None));
        }
        let folder = Folder::new(medium)?;
        Ok((folder.path.join(name), Some(folder)))
    }

    fn create(parent: &Path) -> io::Result<Folder> {
        let mut unlocked = tempfile::Builder::new();
        let unlocked = unlocked.prefix(UNLOCKED_PREFIX).tempdir_in(parent)?;
        // PostgreSQL may run as another user and must reach its folder inside.
        set_mode(unlocked.path(), 0o755)?;
        let lock = File::create_new(unlocked.path().join("lock"))?;
        lock.lock()?;
        let name = unlocked.path().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let path = parent.join(name.replace(UNLOCKED_PREFIX, PREFIX));
        std::fs::rename(unlocked.keep(), &path)?;
        Ok(Folder { path, lock })
    }

    /// The locked file, which a server inherits as its standard input.
    pub fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "temporary folder not removed");
        }
    }
}

/// Creates a folder, with its parents, that only `user` (or we) may enter.
pub(crate) fn private_folder(path: &Path, user: Option<User>) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
    set_mode(path, 0o700)?;
    if let Some(user) = user {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

/// Creates a folder and returns its canonical path, by which a server is identified.
fn canonical(folder: &Path) -> anyhow::Result<PathBuf> {
    let made = std::fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    made.with_context(|| folder.display().to_string())
}

/// Best effort: it cannot remove the folder of another user.
fn sweep(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_left_over(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_left_over(folder: &Path) -> bool {
    File::open(folder.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_only_unlocked_folders() {
        let parent = tempfile::tempdir().unwrap();
        let held = Folder::create(parent.path()).unwrap();
        let left_over = parent.path().join("svc-sandbox-dead");
        std::fs::create_dir(&left_over).unwrap();
        File::create_new(left_over.join("lock")).unwrap();
        let strange = parent.path().join("something-else");
        std::fs::create_dir(&strange).unwrap();

        sweep(parent.path());
        assert!(held.path.exists() && strange.exists() && !left_over.exists());
    }

    #[test]
    fn a_process_that_inherited_the_lock_keeps_the_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::create(parent.path()).unwrap();
        let mut child = spawn_child(&folder);
        let path = folder.path.clone();
        die_without_cleaning(folder);

        assert!(!is_left_over(&path), "a child still uses it");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_left_over(&path));
    }

    fn spawn_child(folder: &Folder) -> std::process::Child {
        let mut child = std::process::Command::new("sleep");
        child
            .arg("60")
            .stdin(folder.lock().unwrap())
            .spawn()
            .unwrap()
    }

    /// Closes the lock and leaves the folder, as a killed process does.
    fn die_without_cleaning(folder: Folder) {
        let moved_away = folder.path.with_extension("moved");
        std::fs::rename(&folder.path, &moved_away).unwrap();
        let path = folder.path.clone();
        drop(folder);
        std::fs::rename(moved_away, path).unwrap();
    }
}
