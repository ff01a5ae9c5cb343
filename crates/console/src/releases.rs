//! The folder of the agent's releases, and the names in it.
//!
//! `{version}/{os}/{arch}/` has `svc-agent` and, where there are packages, `svc-agent.deb` and `svc-agent.rpm`. `{version}/`
//! has the release's `SHA256SUMS` and its signature, if it came with them. Names are checked letter by letter before they
//! become a path.

pub mod import;

use std::{
    cmp::Reverse,
    fs, io,
    path::{Path, PathBuf},
};

use svc_release::Version;

/// The files of one system and architecture.
pub const FILES: [&str; 3] = ["svc-agent", "svc-agent.deb", "svc-agent.rpm"];
/// The architectures that there are programs for.
pub const ARCHS: [&str; 2] = ["x86_64", "aarch64"];
/// The files of a whole release.
pub const SUMS: &str = "SHA256SUMS";
pub const SIGNATURE: &str = "SHA256SUMS.sig";

/// The path of a file of `{version}/{os}/{arch}/`, if every name has the form of one.
pub fn path(folder: &Path, places: [&str; 3], file: &str) -> Option<PathBuf> {
    let known = FILES.contains(&file) && places.iter().all(|name| is_plain(name));
    known.then(|| folder.join(places.join("/")).join(file))
}

/// The path of the checksums of a release, or of their signature.
pub fn sums_path(folder: &Path, version: &str, file: &str) -> Option<PathBuf> {
    let known = [SUMS, SIGNATURE].contains(&file) && is_plain(version);
    known.then(|| folder.join(version).join(file))
}

/// The versions in the folder, the newest first. A folder that is missing has none.
pub fn versions(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut versions = Vec::new();
    for entry in entries {
        let name = entry?.file_name().into_string();
        versions.extend(name.ok().filter(|name| is_version(name)));
    }
    versions.sort_by_cached_key(|name| Reverse(order(name)));
    Ok(versions)
}

/// The newest version, which `/install.sh` installs.
pub async fn newest(folder: &Path) -> Option<String> {
    all(folder).await.into_iter().next()
}

/// The versions, the newest first. A folder that cannot be read has none.
pub async fn all(folder: &Path) -> Vec<String> {
    let folder = folder.to_owned();
    let versions = tokio::task::spawn_blocking(move || versions(&folder));
    let versions = versions.await.ok().and_then(Result::ok);
    versions.unwrap_or_default()
}

/// Whether a release may have this name.
fn is_version(name: &str) -> bool {
    is_plain(name) && order(name).is_some()
}

/// What a version is compared by. Packages write `~` before a release candidate.
fn order(name: &str) -> Option<Version> {
    name.replacen('~', "-", 1).parse().ok()
}

fn is_plain(name: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "._+~-".contains(letter);
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_candidate_ranks_below_its_release() {
        for [older, newer] in [
            ["1.0.0-rc.2", "1.0.0-rc.10"],
            ["1.0.0~rc.1", "1.0.0"],
            ["1.0.0", "1.0.0+45.gabcdef0"],
        ] {
            assert!(order(older) < order(newer), "{older} {newer}");
        }
        for name in ["", "latest", "1..0", "v1.0.0", "1.0.0.x"] {
            assert_eq!(order(name), None, "{name}");
        }
    }

    #[test]
    fn only_names_of_releases_become_paths() {
        let folder = Path::new("/srv/releases");
        let find = |version: &str, file: &str| path(folder, [version, "linux", "x86_64"], file);
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
            assert_eq!(sums_path(folder, version, SUMS), None, "{version}");
        }
        assert_eq!(find("0.2.0", "passwd"), None);
        assert_eq!(sums_path(folder, "0.2.0", "passwd"), None);
    }
}
