//! docs/decisions.md: every link to an entry finds its heading, and every entry that a comment names exists.

use std::collections::BTreeSet;

use crate::repository::{path, text, texts};

#[test]
fn every_link_to_a_decision_finds_its_heading() {
    let anchors: BTreeSet<String> = headings().iter().map(|heading| anchor(heading)).collect();
    let mut links = 0;
    let mut missing = Vec::new();
    for (path, text) in texts(path(""), "md") {
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
    for (path, text) in texts(path(""), "rs") {
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
    let text = text("docs/decisions.md");
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
