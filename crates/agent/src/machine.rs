//! The machine's files, under a root that tests can choose.
//!
//! Reading never fails: a missing file reads as an empty text, and what is derived from it is
//! empty or zero. Reads are bounded, and texts are cut to the service's limits.

mod interfaces;

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use svc_proto::contract::limits::{MAX_NUMBER, MAX_TEXT_BYTES};

/// Far above the size of any of these files.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub fn here() -> Self {
        Self::at(Path::new("/"))
    }

    pub fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// A path of the machine, under the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.path(path)) {
            // After an error, use what was read before it.
            let _ = file.take(MAX_FILE).read_to_end(&mut bytes);
        }
        bytes
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.bytes(path)).into_owned()
    }

    /// The first line of a file, within the service's limits.
    pub fn line(&self, path: &str) -> String {
        clean(self.text(path).lines().next().unwrap_or_default().trim())
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The entries of a folder whose names are UTF-8.
    pub fn names(&self, path: &str) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
    }
}

/// Cuts a text to the service's limit and replaces control characters.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = text.replace(char::is_control, "?");
    clean.truncate(clean.floor_char_boundary(MAX_TEXT_BYTES));
    clean
}

/// The service rejects a sample with a larger number.
pub(crate) fn bounded(number: u64) -> u64 {
    number.min(MAX_NUMBER)
}

/// A folder of files that serves as a machine in tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        for (path, content) in files {
            let path = machine.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        (dir, machine)
    }

    #[test]
    fn texts_are_cut_between_characters_and_have_no_control_characters() {
        assert_eq!(clean("a\0b\nc\u{9b}"), "a?b?c?");
        assert_eq!(clean(&"ä".repeat(200)), "ä".repeat(127));
    }
}
