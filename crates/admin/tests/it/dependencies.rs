//! What deny.toml demands of the dependencies, as far as it needs neither cargo-deny nor the network's database of
//! advisories: banned crates, licences and sources. `make deny` checks all of it.

use std::{collections::BTreeMap, process::Command};

use serde::Deserialize;

use crate::repository;

#[derive(Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[test]
fn no_banned_crate_is_built() {
    let (built, banned) = (built_crates(), policy().bans.deny);
    assert!(!banned.is_empty(), "deny.toml bans nothing");
    for Banned { name, reason } in banned {
        assert!(!built.contains_key(&name), "{name} is built: {reason}");
    }
}

#[test]
fn every_licence_is_allowed() {
    let allowed = policy().licenses.allow;
    let refused: BTreeMap<_, _> = built_crates()
        .into_iter()
        .filter(|(_, licence)| !satisfied(licence, &allowed))
        .collect();
    assert!(
        refused.is_empty(),
        "licences that deny.toml does not allow: {refused:?}"
    );
}

#[test]
fn every_dependency_is_from_the_public_registry() {
    let lock = repository::text("Cargo.lock");
    let sources: Vec<_> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("source = "))
        .collect();
    assert!(
        sources.len() > 100,
        "Cargo.lock has {} sources",
        sources.len()
    );
    for source in sources {
        assert_eq!(
            source,
            "\"registry+https://github.com/rust-lang/crates.io-index\""
        );
    }
}

#[test]
fn an_expression_is_satisfied_by_one_alternative_and_by_all_parts() {
    let allowed = [
        "MIT".to_owned(),
        "ISC".to_owned(),
        "Apache-2.0 WITH LLVM-exception".to_owned(),
    ];
    for yes in [
        "MIT",
        "GPL-3.0 OR MIT",
        "GPL-3.0/MIT",
        "ISC AND (GPL-3.0 OR MIT)",
        "(MIT OR GPL-3.0) AND (ISC)",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(satisfied(yes, &allowed), "{yes}");
    }
    for no in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "ISC AND (GPL-3.0 OR Apache-2.0)",
        "(MIT OR ISC) AND GPL-3.0",
        "Apache-2.0",
    ] {
        assert!(!satisfied(no, &allowed), "{no}");
    }
}

/// Name and licence of each crate that cargo builds for the targets of deny.toml. `cargo metadata` would be wrong here: it
/// also lists optional crates that no feature enables.
fn built_crates() -> BTreeMap<String, String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--locked",
        "--workspace",
        "--edges",
        "normal,build,dev",
        "--prefix",
        "none",
        "--format",
        "{l}\t{p}",
    ]);
    for target in policy().graph.targets {
        tree.args(["--target", &target]);
    }
    let output = tree
        .current_dir(repository::path(""))
        .output()
        .expect("cargo tree");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let crates: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(licence, package)| {
            let name = package.split(' ').next().unwrap_or(package);
            (name.to_owned(), licence.to_owned())
        })
        .collect();
    assert!(
        crates.len() > 100,
        "cargo tree lists {} crates",
        crates.len()
    );
    crates
}

/// Each part of an `AND` needs an allowed alternative; an old form writes `/` for `OR`. No crate has an `AND` inside an
/// alternative; it would be refused rather than allowed.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    plain.split(" AND ").all(|part| {
        let mut alternatives = part.split(" OR ").map(str::trim);
        alternatives.any(|one| allowed.iter().any(|licence| licence == one))
    })
}

fn policy() -> Policy {
    toml::from_str(&repository::text("deny.toml")).expect("deny.toml")
}
