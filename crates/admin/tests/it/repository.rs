//! The files of the repository, for the tests that hold its documents, settings and sources against each other.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders that are not part of the sources.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

pub fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

pub fn text(name: &str) -> String {
    fs::read_to_string(path(name)).expect(name)
}

/// All files with this extension in a folder and those below it.
pub fn texts(folder: PathBuf, extension: &str) -> Vec<(PathBuf, String)> {
    let (mut texts, mut folders) = (Vec::new(), vec![folder]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_left_out = LEFT_OUT.iter().any(|out| path.ends_with(out));
            if path.is_dir() && !is_left_out {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                let text = fs::read_to_string(&path).expect("a text");
                texts.push((path, text));
            }
        }
    }
    texts
}
