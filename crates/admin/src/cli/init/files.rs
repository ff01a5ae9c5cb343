//! Files and folders that `init` makes: complete or not at all, with their mode and owner from the start.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown, lchown},
    path::Path,
};

use anyhow::Context;

/// A user of this machine, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    pub fn of(name: &str) -> Option<Self> {
        find(&fs::read_to_string("/etc/passwd").ok()?, name)
    }
}

fn find(passwd: &str, name: &str) -> Option<Owner> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some(Owner {
        uid: numbers.next()?.ok()?,
        gid: numbers.next()?.ok()?,
    })
}

/// Makes a folder, if there is none.
pub fn folder(path: &Path, mode: u32, owner: Option<Owner>) -> anyhow::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.with_context(|| format!("cannot create {}", path.display()))?;
    give(path, owner)
}

/// Gives a file to the service's user. Only root can. The folder may be that user's already, so no link is followed.
pub fn give(path: &Path, owner: Option<Owner>) -> anyhow::Result<()> {
    let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let given = lchown(path, Some(owner.uid), Some(owner.gid));
    given.with_context(|| format!("cannot change the owner of {}", path.display()))
}

/// Writes a file, or replaces it at once. With an owner, it stays ours and their group may read it.
pub fn replace(path: &Path, text: &str, mode: u32, readers: Option<Owner>) -> anyhow::Result<()> {
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new()
            .prefix(".svc-init-")
            .tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        if let Some(readers) = readers.filter(|_| rustix::process::geteuid().is_root()) {
            fchown(&file, None, Some(readers.gid))?;
        }
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        fs::File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Whether a user may read a file, by its owner, group and mode.
pub fn may_read(path: &Path, user: Owner) -> anyhow::Result<bool> {
    let file = fs::metadata(path).with_context(|| path.display().to_string())?;
    let bit = match (file.uid() == user.uid, file.gid() == user.gid) {
        (true, _) => 0o400,
        (false, true) => 0o040,
        (false, false) => 0o004,
    };
    Ok(file.mode() & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "svc-ingest2:x:1:1::/:/bin/sh\nsvc-ingest:x:998:997::/:/bin/sh\nbad:x:y\n";
        let owner = Owner { uid: 998, gid: 997 };
        assert_eq!(find(passwd, "svc-ingest"), Some(owner));
        assert_eq!(find(passwd, "svc"), None);
        assert_eq!(find(passwd, "bad"), None);
    }
}
