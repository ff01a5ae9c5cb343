//! What updates keep on disk: one file with the books, and a folder for each version that was downloaded.
//!
//! ```text
//! updates.json         the highest serial, the version on trial, the approved one, and the refused one
//! versions/SERIAL/     svc-agent, svc-agent.json, svc-agent.json.sig, and log while it is on trial
//! ```
//!
//! All decisions are in the one file, which is replaced atomically, so that no two files can disagree. A folder counts for
//! nothing by itself: a version is used only if the books name it, and its signature and its SHA-256 are verified at every start.
//! Losing the books costs a download.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use svc_release::{
    LARGEST_UPDATE, PublicKey, SIGNATURE_LENGTH, UPDATE_FILE, Update, Version, digest,
};

use crate::data_dir::{DataDir, DataDirError, UPDATES, content};

pub const PROGRAM: &str = "svc-agent";
const SIGNATURE: &str = "svc-agent.json.sig";
const LOG: &str = "log";
const VERSIONS: &str = "versions";

/// How often a new version may be started until it is approved.
pub const TRIES: u8 = 3;
/// What of a refused version's log travels to the service.
const LOG_TAIL: u64 = 2 * 1024;

/// Only the highest serial can be on trial or refused, because no lower one is accepted any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Books {
    pub highest: u64,
    /// SHA-256 of the manifest with the highest serial: another one with the same serial is not accepted.
    pub digest: String,
    pub trial: Option<Trial>,
    pub approved: Option<Approved>,
    pub refused: Option<Refused>,
}

/// A version on disk that is not approved yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    pub serial: u64,
    pub version: Version,
    /// How often it may still be started.
    pub tries: u8,
    /// Set: it is not started until the version before it has reached what it did not.
    pub failed: Option<Failed>,
    /// How often neither version reached the service.
    #[serde(default)]
    pub doubts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub lack: Lack,
    /// For people.
    pub reason: String,
}

/// What a version on trial did not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// It did not run long enough.
    Life,
    Welcome,
    Acknowledgement,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    pub serial: u64,
    pub version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub serial: u64,
    pub version: Version,
    pub reason: String,
    #[serde(default)]
    pub log_tail: String,
}

impl Books {
    /// Whether or not an agent runs. Damaged books count as none: what they named is downloaded again.
    pub fn read(data_dir: &Path) -> Self {
        let text = content(&data_dir.join(UPDATES)).unwrap_or_else(|error| {
            tracing::warn!(%error, "the books of updates cannot be read");
            None
        });
        let books = text.map(|text| serde_json::from_str(&text));
        books
            .transpose()
            .unwrap_or_else(|_| {
                tracing::warn!("the books of updates are damaged: starting new ones");
                None
            })
            .unwrap_or_default()
    }

    /// They survive a power failure once this has returned.
    pub fn save(&self, dir: &DataDir) -> Result<(), DataDirError> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        dir.write(UPDATES, &text)
    }

    /// The folders that are kept: at most two.
    fn kept(&self) -> [Option<u64>; 2] {
        let approved = self.approved.as_ref().map(|one| one.serial);
        [self.trial.as_ref().map(|one| one.serial), approved]
    }
}

/// The folder of a version.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn of(data_dir: &Path, serial: u64) -> Self {
        Self(data_dir.join(VERSIONS).join(serial.to_string()))
    }

    pub fn program(&self) -> PathBuf {
        self.0.join(PROGRAM)
    }

    pub fn part(&self) -> PathBuf {
        self.0.join("svc-agent.part")
    }

    pub fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// Creates it with a manifest that was verified. The program comes last, so that a folder with a program is complete.
    pub fn create(&self, manifest: &[u8], signature: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        for (name, bytes) in [(UPDATE_FILE, manifest), (SIGNATURE, signature)] {
            let path = self.0.join(name);
            fs::write(&path, bytes)?;
            File::open(&path)?.sync_all()?;
        }
        self.sync()
    }

    /// Syncs the folder and those above it that may be new.
    pub fn sync(&self) -> io::Result<()> {
        for folder in self.0.ancestors().take(3) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// The manifest, if a trusted key has signed it and the program is the one that it names for this platform.
    pub fn verify(&self, keys: &[PublicKey], platform: &str) -> Result<Update, String> {
        let read = |name: &str, most: usize| {
            let mut bytes = Vec::new();
            let file = File::open(self.0.join(name))?;
            file.take(most as u64 + 1).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        let unreadable = |error: io::Error| format!("it cannot be read: {error}");
        let manifest = read(UPDATE_FILE, LARGEST_UPDATE).map_err(unreadable)?;
        let signature = read(SIGNATURE, SIGNATURE_LENGTH).map_err(unreadable)?;
        let update =
            Update::verify(&manifest, &signature, keys).map_err(|error| error.to_string())?;
        let wanted = update.platforms.get(platform);
        let program = File::open(self.program()).map_err(unreadable)?;
        let (size, sha256) = digest(program).map_err(unreadable)?;
        match wanted {
            Some(wanted) if (wanted.size, &wanted.sha256) == (size, &sha256) => Ok(update),
            _ => Err("its file is not the one that was signed".into()),
        }
    }

    /// The end of the log that it wrote while it was on trial, without control characters.
    pub fn log_tail(&self) -> String {
        let read = || {
            let mut file = File::open(self.log())?;
            let from = file.metadata()?.len().saturating_sub(LOG_TAIL);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL).read_to_end(&mut bytes).map(|_| bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.chars()
            .filter(|c| *c == '\n' || !c.is_control())
            .collect()
    }
}

/// Deletes the folders of all versions that the books do not name, but for the one that runs, and for a download that is not
/// complete: it is continued when its release is offered again.
pub fn prune(data_dir: &Path, books: &Books, running: Option<u64>) {
    let kept = books.kept();
    let entries = fs::read_dir(data_dir.join(VERSIONS));
    for entry in entries.into_iter().flatten().flatten() {
        let serial = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let is_part = serial == Some(books.highest) && !entry.path().join(PROGRAM).exists();
        if serial.is_some() && (kept.contains(&serial) || serial == running || is_part) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "an old version cannot be deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_books_count_as_none_and_whole_ones_survive() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        assert_eq!(Books::read(folder.path()), Books::default());
        let books = Books {
            highest: 7,
            approved: Some(Approved {
                serial: 7,
                version: "1.2.3".parse().unwrap(),
            }),
            ..Books::default()
        };
        books.save(&dir).unwrap();
        assert_eq!(Books::read(folder.path()), books);
        fs::write(folder.path().join(UPDATES), "{\"highest\": ").unwrap();
        assert_eq!(Books::read(folder.path()), Books::default());
    }

    #[test]
    fn versions_that_the_books_do_not_name_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        for serial in 1..=4 {
            Folder::of(folder.path(), serial).create(b"", b"").unwrap();
        }
        fs::create_dir(folder.path().join("versions/x")).unwrap();
        let complete = Folder::of(folder.path(), 4).program();
        fs::write(complete, "a program").unwrap();
        let books = Books {
            highest: 4,
            approved: Some(Approved {
                serial: 2,
                version: "1.2.3".parse().unwrap(),
            }),
            ..Books::default()
        };
        Folder::of(folder.path(), 5).create(b"", b"").unwrap();
        prune(folder.path(), &books, Some(3));
        let mut left: Vec<String> = fs::read_dir(folder.path().join("versions"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["2", "3"]);
        let downloading = Books {
            highest: 3,
            ..books
        };
        prune(folder.path(), &downloading, None);
        assert!(folder.path().join("versions/3").exists());
    }

    #[test]
    fn the_tail_of_a_log_is_bounded_and_harmless() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::of(data.path(), 7);
        assert_eq!(folder.log_tail(), "");
        folder.create(b"", b"").unwrap();
        fs::write(folder.log(), "x".repeat(5000) + "\u{1b}[2J end\n").unwrap();
        let tail = folder.log_tail();
        assert!(tail.len() <= 2048 && tail.ends_with("[2J end\n"), "{tail}");
        assert!(!tail.contains('\u{1b}'));
    }
}
