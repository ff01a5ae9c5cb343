//! A replacement of the private CA loses no host, and its key may be kept in another folder.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::Value;
use svc_testkit::{assert_contains, connect_with};

use super::{Machine, pinned, steps};

const CONSOLE: [&str; 3] = ["--name", "localhost", "--console"];

/// Whether an agent that pins this file reaches the service as it is now.
async fn is_trusted(machine: &Machine, ca: &Path) -> Result<bool> {
    let service = machine.command(&["serve"]).start().await?;
    Ok(connect_with(pinned(ca)?, service.grpc).await.is_ok())
}

async fn step(machine: &Machine, name: &str) -> Result<Value> {
    machine.made(&["--new-ca", name]).await
}

fn authorities(machine: &Machine) -> Result<usize> {
    let text = fs::read_to_string(machine.path("etc/ca.pem"))?;
    Ok(text.matches("BEGIN CERTIFICATE").count())
}

/// `lost`: the old key is not there, and is not needed.
async fn replaces(lost: bool) -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&CONSOLE).await?;
    let (ca, old) = (machine.path("etc/ca.pem"), machine.path("old.pem"));
    fs::copy(&ca, &old)?;
    if lost {
        fs::remove_file(machine.path("etc/ca.key"))?;
    }
    let early = machine.init(1, &["--new-ca", "switch"]).await?;
    assert_contains(&early.stderr, "--new-ca begin");

    let begun = step(&machine, "begin").await?;
    assert_eq!(steps(&begun, "made"), ["new CA"], "{begun}");
    assert_eq!(authorities(&machine)?, 2);
    let again = step(&machine, "begin").await?;
    assert_eq!(steps(&again, "made"), [""; 0], "{again}");
    let early = machine.init(1, &["--new-ca", "end"]).await?;
    assert_contains(&early.stderr, "--new-ca switch");
    let plain = machine.made(&[]).await?;
    assert_eq!(steps(&plain, "made"), [""; 0], "{plain}");
    let both = machine.path("both.pem");
    fs::copy(&ca, &both)?;
    assert!(is_trusted(&machine, &old).await?, "nothing has changed yet");
    assert!(is_trusted(&machine, &both).await?);

    let switched = step(&machine, "switch").await?;
    let made = ["certificate", "console TLS", "new CA"];
    assert_eq!(steps(&switched, "made"), made, "{switched}");
    assert!(is_trusted(&machine, &both).await?, "hosts trust both");
    assert!(
        !is_trusted(&machine, &old).await?,
        "the new CA has signed it"
    );
    assert_eq!(machine.path("etc/ca.old.key").exists(), !lost);

    let ended = step(&machine, "end").await?;
    assert_eq!(steps(&ended, "made"), ["new CA"], "{ended}");
    assert_eq!(authorities(&machine)?, 1);
    assert!(is_trusted(&machine, &ca).await?);
    assert!(is_trusted(&machine, &both).await?);
    let plain = machine.made(&["--name", "ingest.example"]).await?;
    assert!(steps(&plain, "made").contains(&"certificate".to_owned()));
    machine.command(&["doctor"]).exits(0).await?;
    Ok(())
}

#[tokio::test]
async fn a_ca_is_replaced_without_losing_a_host() -> Result<()> {
    replaces(false).await
}

#[tokio::test]
async fn a_ca_whose_key_is_lost_is_replaced_without_losing_a_host() -> Result<()> {
    replaces(true).await
}

#[tokio::test]
async fn the_cas_key_moves_to_a_folder_of_its_own_and_may_be_away() -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&["--name", "localhost"]).await?;
    let before = fs::read(machine.path("etc/ca.key"))?;
    let ca = fs::read(machine.path("etc/ca.pem"))?;
    let folder = machine.path("medium");
    let place = folder.to_string_lossy();
    let moved = ["--ca-folder", &*place];
    let report = machine.made(&moved).await?;
    assert_eq!(steps(&report, "made"), ["private CA"], "{report}");
    assert!(!machine.path("etc/ca.key").exists());
    assert_eq!(fs::read(folder.join("ca.key"))?, before);

    let another = ["--name", "ingest.example"];
    let refused = machine.init(1, &another).await?;
    assert_contains(&refused.stderr, "bring ca.key back");
    let report = machine.made(&[&another[..], &moved].concat()).await?;
    assert_eq!(steps(&report, "made"), ["certificate"], "{report}");
    let away = machine.path("away");
    fs::rename(&folder, &away)?;
    let report = machine.made(&moved).await?;
    assert_eq!(steps(&report, "made"), [""; 0], "{report}");
    assert!(!folder.exists(), "a medium that is away is not made");
    assert_eq!(fs::read(machine.path("etc/ca.pem"))?, ca);
    // Another name of the folder of the settings moves nothing.
    fs::copy(away.join("ca.key"), machine.path("etc/ca.key"))?;
    std::os::unix::fs::symlink(machine.path("etc"), machine.path("link"))?;
    let link = machine.path("link");
    machine
        .made(&["--ca-folder", &link.to_string_lossy()])
        .await?;
    assert_eq!(fs::read(machine.path("etc/ca.key"))?, before);
    Ok(())
}

/// An instance faces the network: whoever takes it must not get the CA.
#[test]
fn the_composition_gives_the_cas_key_to_init_alone() {
    let text = crate::repository::text("deploy/compose/compose.yaml");
    for (volume, mounts, writable) in [("ca", 1, 1), ("settings", 3, 1), ("keys", 3, 2)] {
        let mark = format!("- {volume}:/");
        let found = text.lines().map(str::trim);
        let found: Vec<&str> = found.filter(|line| line.starts_with(&mark)).collect();
        let written = found.iter().filter(|line| !line.ends_with(":ro"));
        assert_eq!(
            (found.len(), written.count()),
            (mounts, writable),
            "{volume}"
        );
    }
}
