//! The keys whose releases this agent takes: those that were built in, and those of the operators of this machine.
//!
//! Two keys are built in, the one in use and the next, which stays offline. The operators' folder counts only if root alone can
//! change it: the agent's own user, and whoever has taken over its process, must not be able to add a key.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use rustix::process::geteuid;
use svc_release::PublicKey;

use crate::config::Config;

/// Empty in a build that was given no keys.
const BUILT_IN: &str = include_str!(concat!(env!("OUT_DIR"), "/release.pub"));

/// All keys, or why one of them cannot be used.
pub fn trusted(config: &Config) -> Result<Vec<PublicKey>, String> {
    let mut keys = match BUILT_IN.trim() {
        "" => Vec::new(),
        pem => {
            PublicKey::all_from_pem(pem).map_err(|error| format!("the built-in keys: {error}"))?
        }
    };
    keys.extend(operators(&config.update_keys)?);
    match keys.is_empty() {
        true => Err("this build trusts no release key".into()),
        false => Ok(keys),
    }
}

/// One file with a fault refuses them all: a fleet in which some hosts trust fewer keys is hard to understand.
fn operators(folder: &Path) -> Result<Vec<PublicKey>, String> {
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| failed(folder, &error))?,
    };
    check_owner(folder)?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "pem"));
    paths.sort();
    let mut keys = Vec::new();
    for path in paths {
        check_owner(&path)?;
        let pem = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        keys.extend(PublicKey::all_from_pem(&pem).map_err(|error| failed(&path, &error))?);
    }
    Ok(keys)
}

/// A debug build also accepts the user who runs it, so that its tests need no root.
fn check_owner(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let found = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    let is_ours = cfg!(debug_assertions) && found.uid() == geteuid().as_raw();
    match found.uid() == 0 || is_ours {
        true if found.mode() & 0o022 == 0 => Ok(()),
        _ => Err(format!(
            "{shown} is not used, because others than root can change it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use svc_release::SecretKey;

    use super::*;

    fn folder() -> (tempfile::TempDir, PublicKey) {
        let folder = tempfile::tempdir().unwrap();
        let key = SecretKey::generate().unwrap().public_key().unwrap();
        fs::write(folder.path().join("a.pem"), key.to_pem()).unwrap();
        fs::write(folder.path().join("README"), "not a key").unwrap();
        (folder, key)
    }

    #[test]
    fn operators_add_keys_in_a_folder() {
        let (folder, key) = folder();
        assert_eq!(operators(folder.path()).unwrap(), [key]);
        assert_eq!(operators(&folder.path().join("missing")).unwrap(), []);
        fs::write(folder.path().join("b.pem"), "nothing").unwrap();
        assert!(operators(folder.path()).unwrap_err().contains("b.pem"));
    }

    #[test]
    fn a_folder_or_a_file_that_others_can_change_is_not_used() {
        let (folder, _) = folder();
        let file = folder.path().join("a.pem");
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (path, closed) in [(folder.path(), 0o755), (&*file, 0o644)] {
            open(path, closed | 0o022);
            let refused = operators(folder.path()).unwrap_err();
            assert!(refused.contains("others than root"), "{refused}");
            open(path, closed);
        }
        if geteuid().is_root() {
            chown(&file, Some(65_534), None).unwrap();
            assert!(operators(folder.path()).is_err());
        }
    }
}
