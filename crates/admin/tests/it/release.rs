//! `svc-ingest release`: a key, a manifest and signatures by the real binary, verified by it and by OpenSSL; and what
//! `make release` says about the parts of others.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use anyhow::Result;
use serde_json::Value;
use svc_testkit::assert_contains;
use tempfile::TempDir;

use crate::repository;

const BINARY: &str = "svc-agent-1.2.3-linux-x86_64";

fn run(folder: &Path, program: &str, arguments: &str) -> Result<Output> {
    let mut command = Command::new(program);
    // No settings are needed, and none are read.
    command.env_clear().env("PATH", std::env::var("PATH")?);
    Ok(command
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()?)
}

fn release(folder: &TempDir, arguments: &str) -> Result<Output> {
    let arguments = format!("release {arguments}");
    run(folder.path(), env!("CARGO_BIN_EXE_svc-ingest"), &arguments)
}

fn succeeds(folder: &TempDir, arguments: &str) -> Result<String> {
    let ended = release(folder, arguments)?;
    assert!(ended.status.success(), "{arguments}: {ended:?}");
    Ok(String::from_utf8(ended.stdout)?)
}

fn fails(folder: &TempDir, arguments: &str, reason: &str) -> Result<()> {
    let ended = release(folder, arguments)?;
    assert_eq!(ended.status.code(), Some(1), "{arguments}: {ended:?}");
    assert_contains(&String::from_utf8(ended.stderr)?, reason);
    Ok(())
}

/// A release of two files with its manifest, signed, and the key that signed it.
fn signed() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("dist"))?;
    for name in [BINARY, "svc-ingest_1.2.3_arm64.deb"] {
        fs::write(folder.path().join("dist").join(name), name)?;
    }
    succeeds(&folder, "keygen --out release.key")?;
    succeeds(
        &folder,
        "manifest 1.2.3 dist --created 2026-11-19T00:00:00Z --minimum 1.0.0",
    )?;
    succeeds(&folder, "sign --key release.key dist/release.json")?;
    Ok(folder)
}

#[test]
fn a_release_is_signed_and_verified_by_command_and_by_openssl() -> Result<()> {
    let folder = signed()?;
    let verified = succeeds(&folder, "verify --key release.pub dist")?;
    assert_contains(
        &verified,
        "release 1.2.3: the signature is good, and so are 2 of 2 files",
    );
    let openssl = "pkeyutl -verify -pubin -inkey release.pub -rawin -in dist/release.json -sigfile dist/release.json.sig";
    assert!(run(folder.path(), "openssl", openssl)?.status.success());

    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.path().join("dist/release.json"))?)?;
    let row = |at: usize| {
        let text = |name: &str| {
            manifest["artefacts"][at][name]
                .as_str()
                .unwrap_or("-")
                .to_owned()
        };
        ["file", "product", "target", "kind"].map(text)
    };
    assert_eq!(
        row(0),
        [BINARY, "svc-agent", "x86_64-unknown-linux-musl", "binary"]
    );
    assert_eq!(
        row(1),
        [
            "svc-ingest_1.2.3_arm64.deb",
            "svc-ingest",
            "aarch64-unknown-linux-musl",
            "deb"
        ]
    );
    assert_eq!(manifest["artefacts"][0]["size"], BINARY.len());
    Ok(())
}

#[test]
fn what_was_not_signed_is_refused() -> Result<()> {
    let folder = signed()?;
    let file = |name: &str| folder.path().join("dist").join(name);
    fs::write(file(BINARY), "another program")?;
    fails(
        &folder,
        "verify --key release.pub dist",
        "not the file that was signed",
    )?;
    fs::remove_file(file(BINARY))?;
    assert_contains(
        &succeeds(&folder, "verify --key release.pub dist")?,
        "1 of 2 files",
    );
    fs::remove_file(file("svc-ingest_1.2.3_arm64.deb"))?;
    fails(
        &folder,
        "verify --key release.pub dist",
        "none of the 2 files",
    )?;

    succeeds(&folder, "keygen --out other.key")?;
    fails(
        &folder,
        "verify --key other.pub dist",
        "none of the trusted keys",
    )?;
    let both = [
        fs::read(folder.path().join("other.pub"))?,
        fs::read(folder.path().join("release.pub"))?,
    ];
    fs::write(folder.path().join("both.pub"), both.concat())?;
    fails(&folder, "verify --key both.pub dist", "none of the 2 files")?;

    let text = fs::read_to_string(file("release.json"))?;
    fs::write(file("release.json"), text.replace("1.2.3", "1.2.4"))?;
    fails(
        &folder,
        "verify --key release.pub dist",
        "none of the trusted keys",
    )?;
    fs::remove_file(file("release.json.sig"))?;
    fails(&folder, "verify --key release.pub dist", "release.json.sig")
}

#[test]
fn a_broken_manifest_is_not_signed() -> Result<()> {
    let folder = signed()?;
    for (name, text, reason) in [
        ("release.json", "{\"format\": 2}", "its format is 2"),
        ("svc-agent.json", "{\"serial\": 1}", "svc-agent.json"),
    ] {
        fs::write(folder.path().join("dist").join(name), text)?;
        let sign = format!("sign --key release.key dist/{name}");
        fails(&folder, &sign, reason)?;
    }
    Ok(())
}

#[test]
fn the_manifest_of_an_update_is_written_signed_and_verified_with_the_release() -> Result<()> {
    let folder = signed()?;
    succeeds(
        &folder,
        "manifest 1.2.3 dist --minimum 1.0.0 --serial 7 --notes https://example.org/1.2.3",
    )?;
    let path = folder.path().join("dist/svc-agent.json");
    let update: Value = serde_json::from_slice(&fs::read(&path)?)?;
    assert_eq!(update["serial"], 7);
    assert_eq!(update["minimum"], "1.0.0");
    let size = &update["platforms"]["linux/x86_64"]["size"];
    assert_eq!(*size, BINARY.len(), "{update}");
    fails(&folder, "verify --key release.pub dist", "release.json")?;
    succeeds(
        &folder,
        "sign --key release.key dist/release.json dist/svc-agent.json",
    )?;
    let verified = succeeds(&folder, "verify --key release.pub dist")?;
    assert_contains(&verified, "update 7 to 1.2.3: the signature is good");
    let openssl = "pkeyutl -verify -pubin -inkey release.pub -rawin -in dist/svc-agent.json -sigfile dist/svc-agent.json.sig";
    assert!(run(folder.path(), "openssl", openssl)?.status.success());

    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("\"serial\": 7", "\"serial\": 8"))?;
    fails(
        &folder,
        "verify --key release.pub dist",
        "none of the trusted keys",
    )
}

#[test]
fn a_private_key_is_readable_by_its_owner_alone_never_shown_and_never_overwritten() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let shown = succeeds(&folder, "keygen --out release.key")?;
    let path = folder.path().join("release.key");
    let key = fs::read_to_string(&path)?;
    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
    let secret = key.lines().nth(1).expect("the key's line");
    assert!(!shown.contains(secret));
    assert_contains(&shown, "offline");
    fails(&folder, "keygen --out release.key", "exists already")?;
    fs::remove_file(folder.path().join("release.pub"))?;
    fails(&folder, "keygen --out release.key", "File exists")?;
    assert_eq!(fs::read_to_string(&path)?, key);
    let encrypt = "pkey -in release.key -aes256 -passout pass:x -out locked.key";
    assert!(run(folder.path(), "openssl", encrypt)?.status.success());
    fails(
        &folder,
        "sign --key locked.key release.key",
        "has a passphrase",
    )
}

/// Prints what a script prints for the console on x86_64.
fn script(name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(repository::path("scripts").join(name));
    let ended = command
        .args(arguments)
        .env("CARGO", env!("CARGO"))
        .output()?;
    assert!(ended.status.success(), "{name}: {ended:?}");
    Ok(String::from_utf8(ended.stdout)?)
}

#[test]
fn the_bill_of_materials_has_scripts_and_c_libraries_as_well_as_crates() -> Result<()> {
    let bill: Value = serde_json::from_str(&script("sbom", &["svc-console", "x86_64"])?)?;
    let components = bill["components"].as_array().expect("components");
    let purls = components.iter().filter_map(|one| one["purl"].as_str());
    let purls: Vec<_> = purls.collect();
    assert!(purls.len() > 100, "{purls:?}");
    for start in [
        "pkg:npm/htmx.org@4",
        "pkg:npm/uplot@1",
        "pkg:generic/aws-lc@",
        "pkg:generic/jemalloc@5",
        "pkg:generic/musl",
        "pkg:cargo/argon2@",
    ] {
        assert!(
            purls.iter().any(|purl| purl.starts_with(start)),
            "{start}: {purls:?}"
        );
    }
    let sums = repository::text("crates/console/assets/vendor/SHA256SUMS");
    let text = bill.to_string();
    assert!(sums.lines().count() >= 4);
    for line in sums.lines() {
        assert_contains(&text, line.split(' ').next().unwrap_or(line));
    }
    Ok(())
}

#[test]
fn the_notices_have_the_licences_of_everything_that_is_linked_or_served() -> Result<()> {
    let console = script("notices", &["svc-console"])?;
    for part in [
        "htmx.org 4",
        "uplot 1",
        "Leon Sorokin",
        "aws-lc-sys ",
        "tikv-jemalloc-sys ",
        "Jason Evans",
        "musl",
        "tokio 1",
    ] {
        assert_contains(&console, part);
    }
    let agent = script("notices", &["svc-agent"])?;
    assert_contains(&agent, "tokio 1");
    assert!(!agent.contains("htmx") && !agent.contains("jemalloc"));
    Ok(())
}

#[test]
fn workflows_run_pinned_code_and_only_publishing_may_write() {
    let workflows = repository::texts(repository::path(".github/workflows"), "yml");
    let (mut actions, mut writers) = (0, Vec::new());
    for (path, text) in &workflows {
        let mut job = "";
        for line in text.lines().map(|line| line.trim_end()) {
            if line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':') {
                job = line;
            }
            let line = line.trim().trim_start_matches("- ");
            if let Some(action) = line.strip_prefix("uses: ") {
                let commit = action.split(['@', ' ']).nth(1).unwrap_or_default();
                let is_commit =
                    commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(is_commit, "{}: {action}", path.display());
                actions += 1;
            }
            if let Some(image) = line.strip_prefix("container: ") {
                assert_contains(image, "@sha256:");
            }
            if line.ends_with(": write") {
                writers.push((job.trim(), line));
            }
        }
        assert_contains(text, "\npermissions:\n  contents: read\n");
    }
    assert!(actions > 10, "{actions} actions");
    assert!(
        writers.contains(&("publish:", "contents: write")),
        "{writers:?}"
    );
    assert!(
        writers.iter().all(|(job, _)| *job == "publish:"),
        "{writers:?}"
    );
}
