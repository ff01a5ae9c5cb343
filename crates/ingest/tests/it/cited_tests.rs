//! The tests that docs/conformance.md, docs/reliability.md and docs/runbooks.md cite exist.

use std::{collections::BTreeSet, fs, path::Path};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The documents, and how many different tests each of them cites at least.
const DOCUMENTS: [(&str, usize); 3] = [
    ("docs/conformance.md", 85),
    ("docs/reliability.md", 160),
    ("docs/runbooks.md", 30),
];

#[test]
fn every_cited_test_exists() {
    let repository = Path::new(REPOSITORY);
    let mut problems = Vec::new();
    for (document, least) in DOCUMENTS {
        let text = fs::read_to_string(repository.join(document)).expect(document);
        let citations = citations(&text);
        assert!(
            citations.len() >= least,
            "{document} cites {} tests only",
            citations.len()
        );
        let missing = citations.iter().filter_map(|(file, test)| {
            let source = fs::read_to_string(repository.join("crates").join(file));
            let there = source.is_ok_and(|source| is_test(&source, test));
            (!there).then(|| format!("{document}: {file}::{test}"))
        });
        problems.extend(missing);
    }
    assert!(problems.is_empty(), "no such test: {problems:#?}");
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
