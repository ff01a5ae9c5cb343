//! docs/decisions.md: every link to an entry finds its heading, and every entry that a comment names exists.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Folders that are not part of the sources.
const LEFT_OUT: [&str; 2] = ["target", ".git"];

#[test]
fn every_link_to_a_decision_finds_its_heading() {
    let anchors: BTreeSet<String> = headings().iter().map(|heading| anchor(heading)).collect();
    let mut links = 0;
    let mut missing = Vec::new();
    for (path, text) in texts("md") {
        let start = match path.ends_with("docs/decisions.md") {
            true => "](#",
            false => "decisions.md#",
        };
        for rest in text.split(start).skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            links += 1;
            if !anchors.contains(link) {
                missing.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(links >= 10, "{links} links were found");
    assert!(missing.is_empty(), "no such heading: {missing:#?}");
}

/// As in `(docs/decisions.md, D7)`.
#[test]
fn every_decision_that_a_comment_names_exists() {
    let numbers = numbers();
    for (path, text) in texts("rs") {
        for rest in text.split("docs/decisions.md, D").skip(1) {
            let end = rest.find(|char: char| !char.is_ascii_digit());
            let Ok(number) = rest[..end.unwrap_or(rest.len())].parse::<u32>() else {
                continue;
            };
            assert!(numbers.contains(&number), "{}: D{number}", path.display());
        }
    }
}

#[test]
fn the_numbers_of_decisions_rise() {
    let numbers = numbers();
    assert!(numbers.len() >= 50, "{numbers:?}");
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

fn numbers() -> Vec<u32> {
    let number = |heading: &String| {
        let (number, _) = heading.split_once(": ").expect(heading);
        let number = number.strip_prefix('D').expect(heading);
        number.parse::<u32>().expect(heading)
    };
    headings().iter().map(number).collect()
}

/// The headings of all entries, without their marks.
fn headings() -> Vec<String> {
    let decisions = Path::new(REPOSITORY).join("docs/decisions.md");
    let text = fs::read_to_string(decisions).expect("docs/decisions.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    headings.map(str::to_owned).collect()
}

/// What GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase().replace(' ', "-");
    lower
        .chars()
        .filter(|char| char.is_alphanumeric() || matches!(char, '-' | '_'))
        .collect()
}

/// All files of the repository with this extension.
fn texts(extension: &str) -> Vec<(PathBuf, String)> {
    let mut texts = Vec::new();
    let mut folders = vec![PathBuf::from(REPOSITORY)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_left_out = path
                .file_name()
                .is_some_and(|name| LEFT_OUT.iter().any(|out| name == *out));
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
