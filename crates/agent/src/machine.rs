//! The machine's files, under a root that tests choose.
//!
//! Reading never fails: a kernel or a container that lacks a file gives an empty
//! text, and what is built on it is empty or zero. Reads are bounded, and texts are
//! cut to what the service takes.

mod interfaces;

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// Far above any of the files that are read.
const MAX_FILE: u64 = 1024 * 1024;
/// The longest text that the service takes, in bytes.
const MAX_TEXT: usize = 255;

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

    /// A path of the machine, as it is found under the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.path(path)) {
            // What was read before an error is as good as any.
            let _ = file.take(MAX_FILE).read_to_end(&mut bytes);
        }
        bytes
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.bytes(path)).into_owned()
    }

    /// A file of one line, fit for the service.
    pub fn line(&self, path: &str) -> String {
        clean(self.text(path).lines().next().unwrap_or_default().trim())
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder that are UTF-8.
    pub fn names(&self, path: &str) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
    }
}

/// At most 255 bytes, and no control characters.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = text.replace(char::is_control, "?");
    clean.truncate(clean.floor_char_boundary(MAX_TEXT));
    clean
}

/// The service stores signed numbers.
pub(crate) fn bounded(number: u64) -> u64 {
    number.min(i64::MAX.unsigned_abs())
}

/// A folder with files in it, as a machine of tests.
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
    fn texts_are_cut_at_a_character_and_have_no_control_characters() {
        assert_eq!(clean("a\0b\nc\u{9b}"), "a?b?c?");
        assert_eq!(clean(&"ä".repeat(200)), "ä".repeat(127));
    }

    #[test]
    fn what_is_missing_is_empty() {
        let (_dir, machine) = machine(&[("/etc/x", "\n")]);
        assert_eq!(machine.line("/etc/x"), "");
        assert_eq!(machine.line("/etc/y"), "");
        assert_eq!(machine.text("/etc"), "");
        assert_eq!(machine.names("/no").count(), 0);
    }
}
