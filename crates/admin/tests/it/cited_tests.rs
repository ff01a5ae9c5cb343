//! The tests that docs/conformance.md, docs/reliability.md and docs/runbooks.md cite exist, and so do the source files and the
//! functions of the schema that documents name.

use std::{collections::BTreeSet, fs};

use crate::repository::{path, text};

/// The documents, and how many different tests each of them cites at least.
const DOCUMENTS: [(&str, usize); 3] = [
    ("docs/conformance.md", 85),
    ("docs/reliability.md", 160),
    ("docs/runbooks.md", 30),
];

#[test]
fn every_cited_test_exists() {
    let mut problems = Vec::new();
    for (document, least) in DOCUMENTS {
        let text = text(document);
        let citations = citations(&text);
        assert!(
            citations.len() >= least,
            "{document} cites {} tests only",
            citations.len()
        );
        let missing = citations.iter().filter_map(|(file, test)| {
            let source = fs::read_to_string(path("crates").join(file));
            let there = source.is_ok_and(|source| is_test(&source, test));
            (!there).then(|| format!("{document}: {file}::{test}"))
        });
        problems.extend(missing);
    }
    assert!(problems.is_empty(), "no such test: {problems:#?}");
}

#[test]
fn every_cited_source_file_exists() {
    let (crates, mut cited) = (path("crates"), 0);
    for document in ["docs/conformance.md", "docs/reliability.md"] {
        let text = text(document);
        for quoted in text.split('`').skip(1).step_by(2) {
            let file = quoted.split("::").next().unwrap_or_default();
            if file.contains("/src/") && file.ends_with(".rs") {
                assert!(crates.join(file).is_file(), "{document}: {file}");
                cited += 1;
            }
        }
    }
    assert!(cited > 20, "{cited} source files are cited");
}

/// As in `` `sessions_open_heard` (`schema/30_sessions.sql`) ``.
#[test]
fn every_cited_file_of_the_schema_defines_the_function_that_is_named_before_it() {
    let text = text("ARCHITECTURE.md");
    let mut citations = text.split("` (`schema/").peekable();
    let mut cited = 0;
    while let (Some(before), Some(after)) = (citations.next(), citations.peek()) {
        let function = before.rsplit('`').next().unwrap_or_default();
        let file = after.split('`').next().unwrap_or_default();
        let sql = self::text(&format!("crates/store/schema/{file}"));
        let defined = sql.contains(&format!("FUNCTION {function}("));
        assert!(defined, "{function} is not in {file}");
        cited += 1;
    }
    assert!(cited > 0, "ARCHITECTURE.md cites no file of the schema");
}

/// Whether `name` is a function that stands under a test attribute.
fn is_test(source: &str, name: &str) -> bool {
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else {
        return false;
    };
    let attributes = before.lines().rev().take(6);
    before.contains("proptest! {") || attributes.into_iter().any(|line| line.contains("test"))
}

/// Every `` `path.rs::name` ``: file and test.
fn citations(text: &str) -> BTreeSet<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(|(file, test)| file.contains('/') && file.ends_with(".rs") && is_name(test))
        .collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
