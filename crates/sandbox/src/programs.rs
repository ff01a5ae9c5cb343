//! Where the programs of the servers are, and which user runs them.
//!
//! Distributions keep the server programs of PostgreSQL off the PATH. They must have the same
//! version, so all are taken from one folder. The error about a missing program has
//! the command that installs it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Folders of PostgreSQL outside the PATH. `*` is a version; the newest is used.
const POSTGRES_FOLDERS: [&str; 7] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/opt/homebrew/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/libexec/postgresql",
];
/// Folders of server programs.
const SERVER_FOLDERS: [&str; 4] = [
    "/usr/sbin",
    "/usr/bin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
];

/// A user of /etc/passwd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
}

const POSTGRES_PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_basebackup"];

/// The folder that holds all programs of PostgreSQL that are needed.
pub(crate) fn postgres_folder() -> anyhow::Result<PathBuf> {
    let has_all = |folder: &PathBuf| {
        let mut programs = POSTGRES_PROGRAMS.iter();
        programs.all(|name| is_program(&folder.join(name)))
    };
    on_path()
        .chain(POSTGRES_FOLDERS.iter().flat_map(|pattern| expand(pattern)))
        .find(has_all)
        .context(
            "PostgreSQL's server programs (initdb, postgres, pg_basebackup) are not installed: \
             run scripts/deps, or: apt-get install postgresql",
        )
}

pub(crate) fn nats_server() -> anyhow::Result<PathBuf> {
    let home = std::env::home_dir().map(|home| home.join("go/bin"));
    server_program("nats-server", home)
}

pub(crate) fn pgbouncer() -> anyhow::Result<PathBuf> {
    server_program("pgbouncer", None)
}

fn server_program(name: &str, further_folder: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let folders = on_path().chain(SERVER_FOLDERS.iter().map(PathBuf::from));
    let mut programs = folders
        .chain(further_folder)
        .map(|folder| folder.join(name));
    let advice =
        || format!("{name} is not installed: run scripts/deps, or: apt-get install {name}");
    programs.find(|path| is_program(path)).with_context(advice)
}

/// util-linux's `setpriv`, which sets a death signal and drops privileges without unsafe code here.
pub(crate) fn setpriv() -> Option<PathBuf> {
    on_path()
        .map(|folder| folder.join("setpriv"))
        .find(|program| is_program(program))
}

/// The user that runs PostgreSQL if we are root, which PostgreSQL refuses to run as.
pub(crate) fn unprivileged_user() -> anyhow::Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
    match find_user(&passwd, "postgres").or_else(|| find_user(&passwd, "nobody")) {
        Some(user) => Ok(Some(user)),
        None => bail!("PostgreSQL refuses to run as root, and there is no user postgres or nobody"),
    }
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    let uid = fields.next()?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(User { uid, gid })
}

fn on_path() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The folders that match a pattern with at most one `*`, the highest version first.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else {
        return vec![PathBuf::from(pattern)];
    };
    let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let mut versions: Vec<u32> = names_in(parent)
        .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions
        .iter()
        .map(|version| PathBuf::from(format!("{before}{version}{after}")))
        .collect()
}

fn names_in(folder: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd =
            "postgresql:x:1:2::/:/bin/sh\npostgres:x:101:104:PostgreSQL,,,:/var:/bin/bash\n";
        let user = find_user(passwd, "postgres").unwrap();
        assert_eq!((user.uid, user.gid), (101, 104));
        assert!(find_user(passwd, "nobody").is_none());
    }

    #[test]
    fn the_newest_version_comes_first_by_number_and_not_by_letter() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["9", "16", "15", "common"] {
            std::fs::create_dir(folder.path().join(version)).unwrap();
        }
        let found = expand(&format!("{}/*/bin", folder.path().display()));
        let expected = ["16", "15", "9"].map(|version| folder.path().join(version).join("bin"));
        assert_eq!(found, expected);
    }
}
