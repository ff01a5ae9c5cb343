//! The private CA that hosts pin: no run of `init` puts another one in its place.

use std::fs;

use anyhow::Result;
use svc_sandbox::{Authority, Identity};
use svc_testkit::{assert_contains, connect_with};

use super::{Machine, pinned, steps};

const NAMES: [&str; 2] = ["--name", "localhost"];

/// An installation without some of its files, as after the advice to keep them elsewhere.
async fn installed_without(missing: &[&str]) -> Result<Machine> {
    let machine = Machine::new().await?;
    machine.made(&NAMES).await?;
    for name in missing {
        fs::rename(machine.path("etc").join(name), machine.path(name))?;
    }
    Ok(machine)
}

/// Fails unless a run is refused with this text and changes no file.
async fn refused(machine: &Machine, further: &[&str], text: &str) -> Result<()> {
    let before = machine.files()?;
    let ended = machine.init(1, further).await?;
    assert_contains(&ended.stderr, text);
    assert!(machine.files()? == before, "a refused run changes no file");
    Ok(())
}

#[tokio::test]
async fn without_the_cas_key_a_run_keeps_everything_or_asks_for_the_key() -> Result<()> {
    let machine = installed_without(&["ca.key"]).await?;
    let before = machine.files()?;
    let report = machine.made(&NAMES).await?;
    assert_eq!(steps(&report, "made"), [""; 0], "{report}");
    assert_contains(&report.to_string(), "its key is not here");
    assert!(machine.files()? == before, "the run changes no file");
    let another = ["--name", "ingest.example"];
    refused(&machine, &another, "bring ca.key back").await?;

    fs::rename(machine.path("ca.key"), machine.path("etc/ca.key"))?;
    let report = machine.made(&another).await?;
    assert_eq!(steps(&report, "made"), ["certificate"]);
    let ca = machine.path("etc/ca.pem");
    assert_eq!(fs::read(&ca)?, before[&ca]);
    let service = machine.command(&["serve"]).start().await?;
    connect_with(pinned(&ca)?, service.grpc).await?;
    Ok(())
}

/// A second instance has the certificate and its key alone.
#[tokio::test]
async fn a_certificate_whose_ca_is_elsewhere_gets_no_other_ca() -> Result<()> {
    let machine = installed_without(&["ca.key", "ca.pem"]).await?;
    let report = machine.made(&NAMES).await?;
    assert_eq!(steps(&report, "made"), [""; 0], "{report}");
    assert!(!machine.path("etc/ca.pem").exists());
    let expired = Identity::expired_server(&["localhost"])?;
    expired.write(&machine.path("etc"), "tls")?;
    refused(&machine, &NAMES, "bring ca.key back").await
}

#[tokio::test]
async fn a_ca_that_lost_its_certificate_is_not_made_again() -> Result<()> {
    let machine = installed_without(&["ca.pem"]).await?;
    refused(&machine, &NAMES, "bring ca.pem back").await
}

#[tokio::test]
async fn a_ca_that_has_not_signed_the_certificate_is_noticed() -> Result<()> {
    let machine = installed_without(&[]).await?;
    let stranger = Authority::new("another CA")?;
    fs::write(machine.path("etc/ca.pem"), stranger.cert_pem())?;
    refused(&machine, &NAMES, "has not signed").await?;
    let doctor = machine.command(&["doctor"]).exits(1).await?;
    assert_contains(&doctor.stdout, "has not signed it");

    fs::remove_file(machine.path("etc/tls.crt"))?;
    refused(&machine, &NAMES, "is not the key of").await
}
