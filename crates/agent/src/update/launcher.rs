//! The launcher: `svc-agent run` begins with it, before the runtime starts. It replaces this process by a newer version that
//! the agent has downloaded, or goes on as itself.
//!
//! The installed program is the launcher, so the last resort is the file that the package manager put there, which no update
//! touches. There is no second process and no link: `exec` keeps the process id, and what ends the process, a crash, systemd's
//! watchdog or a power failure, leads here again.
//!
//! A version on trial has a few tries. The number left is counted down *before* the start and is on disk by then, so that no
//! version, however it fails, is started more often. If it cannot be written, nothing is tried. A version is used only if
//! it is higher than the launcher's own: a newer package simply wins.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};
use svc_release::{PublicKey, Version};

use super::{
    keys, platform,
    store::{Books, Failed, Folder, Lack, TRIES},
};
use crate::{
    config::{Config, UpdateMode},
    data_dir::DataDir,
    release,
};

/// Carries a [`Launch`] to the version that is started, which does not launch again then.
pub const VARIABLE: &str = "SVC_AGENT_LAUNCHED";

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The installed program, to which a version on trial returns.
    pub launcher: PathBuf,
    /// The launcher's own version.
    pub version: Version,
    /// The serial of the version that was launched; `None`: the launcher goes on itself.
    pub serial: Option<u64>,
    /// The fingerprints of the keys that the launcher trusts. A version that only newer keys have signed would not be started.
    pub keys: Vec<String>,
}

impl Launch {
    /// What the launcher said, if this process was launched.
    pub fn given() -> Option<Self> {
        serde_json::from_str(&env::var(VARIABLE).ok()?).ok()
    }

    /// Replaces this process by the installed program, which looks for the version to run again. Returns only on failure.
    pub fn again(&self) -> std::io::Error {
        let mut command = Command::new(&self.launcher);
        command.args(arguments()).env_remove(VARIABLE).exec()
    }

    fn start(&self, program: &Path) -> std::io::Error {
        let text = serde_json::to_string(self).unwrap_or_default();
        Command::new(program)
            .args(arguments())
            .env(VARIABLE, text)
            .exec()
    }
}

fn arguments() -> impl Iterator<Item = OsString> {
    env::args_os().skip(1)
}

/// Continues as the newest good version; returns if that is this program. `None`: this program does not know itself, and cannot
/// launch or update anything.
pub fn launch(config: &Config) -> Option<Launch> {
    if let Some(launch) = Launch::given() {
        return Some(launch);
    }
    let own = release::own_version()?;
    let keys = keys::trusted(config).unwrap_or_default();
    let mut launch = Launch {
        launcher: env::current_exe().ok()?,
        version: own.clone(),
        serial: None,
        keys: keys.iter().map(PublicKey::fingerprint).collect(),
    };
    if keys.is_empty() || config.update == UpdateMode::Off {
        return Some(launch);
    }
    // A folder that is in use, or that cannot be opened: the agent itself says so.
    let Ok(dir) = DataDir::open(&config.data_dir) else {
        return Some(launch);
    };
    let mut books = Books::read(dir.path());
    let verify = |serial: u64| {
        let verified = Folder::of(dir.path(), serial).verify(&keys, &platform());
        match verified {
            Ok(update) => Some(update.version),
            Err(error) => {
                tracing::warn!(serial, error, "a downloaded version is not used");
                None
            }
        }
    };
    loop {
        let before = books.clone();
        let chosen = choose(&mut books, &own, verify);
        if books != before
            && let Err(error) = books.save(&dir)
        {
            tracing::warn!(%error, "a new version is not tried: its tries cannot be counted");
            books.trial = None; // Only in memory.
            continue;
        }
        let Some(serial) = chosen else {
            return Some(launch);
        };
        launch.serial = Some(serial);
        let failure = launch.start(&Folder::of(dir.path(), serial).program());
        tracing::warn!(serial, error = %failure, "a downloaded version cannot be started");
        launch.serial = None;
        not_started(&mut books, serial, &failure.to_string());
        if let Err(error) = books.save(&dir) {
            tracing::warn!(%error, "the books of updates cannot be written");
        }
    }
}

/// The serial to start, with one try fewer if it is on trial; `None`: the launcher itself.
fn choose(
    books: &mut Books,
    own: &Version,
    verify: impl Fn(u64) -> Option<Version>,
) -> Option<u64> {
    let is_good =
        |serial, version: &Version| version > own && verify(serial).as_ref() == Some(version);
    if let Some(trial) = &mut books.trial
        && trial.failed.is_none()
        && is_good(trial.serial, &trial.version)
    {
        if trial.tries > 0 {
            trial.tries -= 1;
            return Some(trial.serial);
        }
        let reason = format!("it ended {TRIES} times before it could be approved");
        trial.failed = Some(Failed {
            lack: Lack::Life,
            reason,
        });
    }
    let approved = books.approved.as_ref()?;
    is_good(approved.serial, &approved.version).then_some(approved.serial)
}

/// The kernel does not start the file: another try would end the same.
fn not_started(books: &mut Books, serial: u64, error: &str) {
    match &mut books.trial {
        Some(trial) if trial.serial == serial => {
            trial.tries = 0;
            let reason = format!("it cannot be started: {error}");
            trial.failed = Some(Failed {
                lack: Lack::Life,
                reason,
            });
        }
        _ => books.approved = None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::store::{Approved, Trial};

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn books() -> Books {
        Books {
            highest: 7,
            trial: Some(Trial {
                serial: 7,
                version: version("1.2.0"),
                tries: TRIES,
                failed: None,
                doubts: 0,
            }),
            approved: Some(Approved {
                serial: 6,
                version: version("1.1.0"),
            }),
            ..Books::default()
        }
    }

    fn verified(serial: u64) -> Option<Version> {
        Some(version(if serial == 7 { "1.2.0" } else { "1.1.0" }))
    }

    #[test]
    fn a_version_on_trial_is_started_as_often_as_it_has_tries() {
        let (mut books, own) = (books(), version("1.0.0"));
        for left in (0..TRIES).rev() {
            assert_eq!(choose(&mut books, &own, verified), Some(7));
            assert_eq!(books.trial.as_ref().unwrap().tries, left);
        }
        assert_eq!(choose(&mut books, &own, verified), Some(6));
        let failed = books.trial.as_ref().unwrap().failed.clone().unwrap();
        assert_eq!(failed.lack, Lack::Life);
        assert_eq!(choose(&mut books, &own, verified), Some(6));
    }

    #[test]
    fn a_package_that_is_as_new_wins() {
        for (own, chosen) in [("1.1.9", Some(7)), ("1.2.0", None), ("1.3.0", None)] {
            assert_eq!(
                choose(&mut books(), &version(own), verified),
                chosen,
                "{own}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_the_signed_one_is_not_started_and_costs_no_try() {
        let (mut books, own) = (books(), version("1.0.0"));
        let before = books.clone();
        let broken = |serial| verified(serial).filter(|_| serial != 7);
        assert_eq!(choose(&mut books, &own, broken), Some(6));
        assert_eq!(choose(&mut books, &own, |_| None), None);
        // A manifest of another version in its place.
        assert_eq!(choose(&mut books, &own, |_| Some(version("9.0.0"))), None);
        assert_eq!(books, before);
    }

    #[test]
    fn a_file_that_the_kernel_refuses_is_not_tried_again() {
        let (mut books, own) = (books(), version("1.0.0"));
        assert_eq!(choose(&mut books, &own, verified), Some(7));
        not_started(&mut books, 7, "exec format error");
        assert_eq!(choose(&mut books, &own, verified), Some(6));
        not_started(&mut books, 6, "exec format error");
        assert_eq!(choose(&mut books, &own, verified), None);
    }
}
