//! The variables of a process: its environment, and beneath it the settings file of the installation.
//!
//! Service and console take their variables from systemd, which reads `/etc/svc/*.env`. Their commands read the same files by
//! themselves, so that an administrator exports nothing.

use std::{ffi::OsString, path::Path, sync::OnceLock};

use super::{EnvFile, Problems, Reader, Variable, read};

/// The variable that says which installation a process belongs to.
const INSTALLATION: &str = "DATABASE_URL";

static FILE: OnceLock<EnvFile> = OnceLock::new();

/// Puts the variables of a file beneath the environment. A process that has its own DATABASE_URL gets nothing from the
/// file: a mixture of two installations' settings would be dangerous.
pub fn use_file(path: &Path) {
    if environment(INSTALLATION).is_none() {
        FILE.get_or_init(|| EnvFile::read(path));
    }
}

/// The value of a variable; an empty one counts as not set.
pub fn environment(name: &str) -> Option<OsString> {
    let set = std::env::var_os(name).filter(|value| !value.is_empty());
    set.or_else(|| FILE.get()?.get(name).map(OsString::from))
}

/// Reads a section from the environment. Where that fails, a settings file that could not be read is a problem too.
pub fn read_environment<T>(
    variables: &'static [Variable],
    collect: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Problems> {
    read(variables, &environment, collect).map_err(|mut problems| {
        if let Some(reason) = FILE.get().and_then(EnvFile::unreadable) {
            let message = format!("{reason} (are you root?)");
            problems.0.extend(Problems::one("--env-file", message).0);
        }
        problems
    })
}
