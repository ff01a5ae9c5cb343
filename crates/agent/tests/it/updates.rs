//! An agent that updates itself, as real processes: what it takes, what it refuses, and how it comes back from versions that do not
//! work. The service is a hostile one ([`service`]), because the real one makes good offers only.
//!
//! The programs are copies of the debug build of this tree, which takes its version from the end of its file.

pub mod host;
pub mod service;

use std::{fs, os::unix::fs::PermissionsExt, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use svc_release::{SecretKey, Update};
use svc_testkit::{assert_contains, eventually};
use tokio::time::sleep;

use crate::installation::away;
use host::{Host, program};
use service::Downloads;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_update_is_downloaded_tried_and_approved_and_survives_a_crash() -> Result<()> {
    let host = Host::new().await?;
    let agent = host.supervise()?;
    host.runs("1.0.0").await?;
    let state = host.service.seen().states[0].clone();
    ensure!(state.platform == svc_agent::update::platform(), "{state:?}");

    host.service.offer(host.good(7, "1.1.0")?);
    host.reports(UpdateStep::Trying, 7).await?;
    ensure!(host.version() == "1.1.0");
    let goodbye = host.service.seen().goodbyes[0].clone();
    ensure!(
        goodbye.reason == "update" && goodbye.back_within.is_some(),
        "{goodbye:?}"
    );
    host.reports(UpdateStep::Approved, 7).await?;
    ensure!(host.versions() == ["7"], "{:?}", host.versions());

    host.forget();
    agent.kill().await?;
    host.runs("1.1.0").await?;
    host.reports(UpdateStep::Approved, 7).await?;

    // The next one replaces it, and two are kept at most.
    host.service.offer(host.good(8, "1.2.0")?);
    host.reports(UpdateStep::Approved, 8).await?;
    eventually("the former version is deleted", async || {
        host.versions() == ["8"]
    })
    .await
}

/// What a compromised service can try with an offer.
#[tokio::test]
async fn no_offer_that_was_not_signed_for_this_agent_changes_anything() -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    // A release that this agent has seen, so that others can be older.
    let seen = host.good(5, "1.0.0")?;
    host.service.offer(seen.clone());
    host.reports(UpdateStep::Approved, 5).await?;

    let good = host.good(6, "1.1.0")?;
    let update = Update::parse(&good.manifest)?;
    let with = |change: fn(&mut Update)| {
        let mut update = update.clone();
        change(&mut update);
        host.signed(&update, &host.key)
    };
    let mut truncated = good.clone();
    truncated.manifest.pop();
    let mut oversized = good.clone();
    oversized.manifest.resize(5000, b' ');
    oversized.signature = host.key.sign(&oversized.manifest)?;
    let mut elsewhere = good.clone();
    elsewhere.download_base_url = "http://192.0.2.1/".into();
    let offers: [(UpdateOffer, &str); 10] = [
        (
            host.signed(&update, &SecretKey::generate()?)?,
            "none of the trusted keys",
        ),
        (truncated, "none of the trusted keys"),
        (UpdateOffer::default(), "none of the trusted keys"),
        (oversized, "larger than 4096 bytes"),
        (
            with(|update| update.product = "svc-ingest".into())?,
            "another product",
        ),
        (with(|update| update.serial = 4)?, "lower than 5"),
        (
            with(|update| update.serial = 5)?,
            "another manifest with the serial 5",
        ),
        (
            with(|update| {
                update.platforms = [(
                    "linux/pdp11".into(),
                    update.platforms.pop_first().unwrap().1,
                )]
                .into();
            })?,
            "no program for",
        ),
        (
            with(|update| update.minimum = Some("1.0.1".parse().unwrap()))?,
            "it replaces 1.0.1 and later",
        ),
        (elsewhere, "is not https://"),
    ];
    let books = host.installed.path().join("updates.json");
    let before = fs::read_to_string(&books)?;
    for (offer, reason) in offers {
        // The agent says what is new only.
        host.service.offer(seen.clone());
        host.reports(UpdateStep::Approved, 5).await?;
        host.forget();
        host.service.offer(offer);
        let is = |state: &UpdateState| {
            state.step() == UpdateStep::Unable && state.reason.contains(reason)
        };
        eventually(reason, async || host.service.seen().states.iter().any(is)).await?;
        ensure!(fs::read_to_string(&books)? == before, "after {reason}");
        ensure!(host.versions().is_empty(), "after {reason}");
        ensure!(host.service.seen().ranges.is_empty(), "after {reason}");
    }
    // None of them keeps it from a good one.
    host.service.offer(good);
    host.reports(UpdateStep::Approved, 6).await?;
    ensure!(host.version() == "1.1.0");
    Ok(())
}

/// What a compromised console can try with a download.
#[tokio::test]
async fn no_download_but_the_signed_file_is_ever_started() -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    let mut serial = 6;
    for (served, reason) in [
        (Downloads::Moved, "answered 302"),
        (Downloads::Busy, "answered 503"),
        (Downloads::Longer, "other than the file that was signed"),
        (Downloads::Swapped, "other than the file that was signed"),
        (Downloads::Cut, "interrupted"),
    ] {
        serial += 1;
        host.service.seen().served = served;
        host.service.offer(host.good(serial, "1.1.0")?);
        let is = |state: &UpdateState| state.serial == serial && state.reason.contains(reason);
        eventually(reason, async || host.service.seen().states.iter().any(is)).await?;
        let folder = host
            .installed
            .path()
            .join("versions")
            .join(serial.to_string());
        ensure!(!folder.join("svc-agent").exists(), "{reason}");
    }
    host.service.seen().served = Downloads::Good;
    host.reports(UpdateStep::Approved, serial).await?;
    let ranges = host.service.seen().ranges.clone();
    ensure!(
        ranges.last().is_some_and(|start| *start > 0),
        "not resumed: {ranges:?}"
    );
    Ok(())
}

/// Whoever can write to the agent's folder has its rights already, but a program that was not signed is not started from there.
#[tokio::test]
async fn a_file_that_was_changed_on_disk_is_not_started() -> Result<()> {
    let host = Host::new().await?;
    let agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.offer(host.good(7, "1.1.0")?);
    host.reports(UpdateStep::Approved, 7).await?;
    host.forget();
    let file = host.installed.path().join("versions/7/svc-agent");
    fs::remove_file(&file)?;
    fs::write(&file, program("1.1.0\n")?)?;
    agent.kill().await?;
    host.runs("1.0.0").await?;
    // It is still offered, and repaired.
    host.reports(UpdateStep::Approved, 7).await?;
    ensure!(host.version() == "1.1.0");
    Ok(())
}

#[tokio::test]
async fn a_version_that_crashes_goes_back_and_is_refused() -> Result<()> {
    refused(b"#!/bin/sh\nexit 3\n".to_vec(), "it ended 3 times").await
}

#[tokio::test]
async fn a_version_that_exits_with_2_goes_back_and_is_refused() -> Result<()> {
    refused(b"#!/bin/sh\nexit 2\n".to_vec(), "it ended 3 times").await
}

/// The C library may hand it to a shell.
#[tokio::test]
async fn a_file_that_is_no_program_goes_back_and_is_refused() -> Result<()> {
    refused(b"\x7fELF, but not one".to_vec(), "it ").await
}

#[tokio::test]
async fn a_version_that_hangs_goes_back_and_is_refused() -> Result<()> {
    refused(b"#!/bin/sh\nexec sleep 1000\n".to_vec(), "it ended 3 times").await
}

async fn refused(program: Vec<u8>, reason: &str) -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.offer(host.release(7, "1.1.0", program)?);
    let state = host.reports(UpdateStep::Refused, 7).await?;
    assert_contains(&state.reason, reason);
    let gone = async || host.version() == "1.0.0" && host.versions().is_empty();
    let gone = eventually(
        "the old version runs and nothing is left of the other",
        gone,
    )
    .await;
    gone.with_context(|| format!("{} {:?}", host.version(), host.versions()))?;
    // The same offer does not start it again, and another one is welcome.
    host.forget();
    host.service.offer(host.good(8, "1.1.1")?);
    host.reports(UpdateStep::Approved, 8).await.map(drop)
}

/// As one that cannot speak to the service any more, while the version before it can.
#[tokio::test]
async fn a_version_that_gets_no_welcome_goes_back_and_is_refused() -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.seen().unwelcome = Some("1.1.0");
    host.service.offer(host.good(7, "1.1.0")?);
    let state = host.reports(UpdateStep::Refused, 7).await?;
    assert_contains(&state.reason, "did not welcome it");
    ensure!(!state.log_tail.is_empty(), "{state:?}");
    host.runs("1.0.0").await
}

#[tokio::test]
async fn a_service_that_is_down_during_the_trial_refuses_nothing_and_the_update_succeeds_later()
-> Result<()> {
    let host = Host::new().await?;
    let agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.offer(host.good(7, "1.1.0")?);
    // The new version starts now, and is not welcome yet.
    eventually("the restart", async || {
        !host.service.seen().goodbyes.is_empty()
    })
    .await?;
    away(&host.network, true)?;
    // Longer than both versions wait for a Welcome.
    let logs = async |text: &str| {
        eventually(text, async || {
            agent
                .current()
                .is_some_and(|agent| agent.logs().contains(text))
        })
        .await
    };
    logs("the new one is not at fault").await?;
    away(&host.network, false)?;
    host.reports(UpdateStep::Approved, 7).await?;
    let refused = |state: &UpdateState| state.step() == UpdateStep::Refused;
    ensure!(!host.service.seen().states.iter().any(refused));
    Ok(())
}

#[tokio::test]
async fn a_newer_package_wins_in_the_middle_of_a_trial() -> Result<()> {
    let host = Host::new().await?;
    let agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.offer(host.good(7, "1.1.0")?);
    host.reports(UpdateStep::Trying, 7).await?;
    host.install("2.0.0")?;
    if let Some(process) = agent.current() {
        process.signal(Signal::TERM)?;
    }
    host.runs("2.0.0").await?;
    // The release is older than the package now.
    let state = host.reports(UpdateStep::Unable, 7).await?;
    assert_contains(&state.reason, "the installed package is newer");
    eventually("the downloaded version is deleted", async || {
        host.versions().is_empty()
    })
    .await
}

#[tokio::test]
async fn a_higher_serial_takes_agents_back_to_an_older_version() -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    for (serial, version) in [(7, "1.2.0"), (8, "1.1.0"), (9, "1.0.0")] {
        host.service.offer(host.good(serial, version)?);
        host.reports(UpdateStep::Approved, serial).await?;
        ensure!(host.version() == version, "{serial}");
    }
    // The last one is the installed program: nothing was downloaded.
    eventually("nothing is left", async || host.versions().is_empty()).await
}

#[tokio::test]
async fn an_agent_that_cannot_update_itself_says_why() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let open = folder.path().display().to_string();
    for (setting, value, reason) in [
        ("update", "off", "update = \"off\""),
        (
            "update_keys",
            open.as_str(),
            "others than root can change it",
        ),
    ] {
        let mut host = Host::new().await?;
        host.installed.settings.push((setting, value.into()));
        let _agent = host.supervise()?;
        host.runs("1.0.0").await?;
        host.service.offer(host.good(7, "1.1.0")?);
        let state = host.reports(UpdateStep::Unable, 0).await?;
        assert_contains(&state.reason, reason);
        sleep(2 * SECOND).await;
        ensure!(host.versions().is_empty() && host.service.seen().ranges.is_empty());
    }
    Ok(())
}

/// The kills fall on the download, the start, the trial and the approval, as they come.
async fn killed(times: u32) -> Result<()> {
    let host = Host::new().await?;
    let agent = host.supervise()?;
    let mut serial = 1;
    for _ in 0..times {
        let newest = host
            .service
            .seen()
            .states
            .last()
            .cloned()
            .unwrap_or_default();
        let is_settled = matches!(newest.step(), UpdateStep::Approved | UpdateStep::Refused);
        if serial == 1 || (is_settled && newest.serial == serial) {
            serial += 1;
            host.service
                .offer(host.good(serial, &format!("1.{serial}.0"))?);
        }
        sleep(SECOND.mul_f64(rand::random_range(0.0..3.0))).await;
        agent.kill().await?;
        let hellos = host.service.seen().hellos.len();
        eventually("a version that works is back", async || {
            host.service.seen().hellos.len() > hellos
        })
        .await?;
        ensure!(host.versions().len() <= 3, "{:?}", host.versions());
    }
    // Unharmed, the next one succeeds.
    serial += 1;
    let version = format!("1.{serial}.0");
    host.service.offer(host.good(serial, &version)?);
    host.reports(UpdateStep::Approved, serial).await?;
    ensure!(host.version() == version);
    ensure!(
        host.versions() == [serial.to_string()],
        "{:?}",
        host.versions()
    );
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_comes_back_with_a_version_that_works() -> Result<()> {
    killed(10).await
}

#[tokio::test]
#[ignore = "takes ten minutes: run by make chaos"]
async fn an_agent_that_is_killed_two_hundred_times_comes_back_each_time() -> Result<()> {
    killed(200).await
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn root_a_disk_without_room_for_three_copies_is_left_alone() -> Result<()> {
    let mut host = Host::new().await?;
    let disk = tempfile::tempdir()?;
    let place = disk.path().display().to_string();
    let options = "size=24m,mode=700";
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "tmpfs", &place])
        .status()?;
    ensure!(mount.success(), "mount");
    host.installed.home = Some(disk.path().into());
    let agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.offer(host.good(7, "1.1.0")?);
    let is = |state: &UpdateState| state.reason.contains("bytes free");
    eventually("too little space", async || {
        host.service.seen().states.iter().any(is)
    })
    .await?;
    ensure!(host.service.seen().ranges.is_empty());
    // A disk that takes nothing at all: the trial cannot be counted, so there is none.
    let ballast = fs::write(disk.path().join("ballast"), vec![1; 32 << 20]);
    ensure!(ballast.is_err(), "the disk is not full");
    host.forget();
    host.service.offer(host.good(8, "1.2.0")?);
    let state = host.reports(UpdateStep::Unable, 8).await?;
    assert_contains(&state.reason, "cannot be written");
    ensure!(host.version().is_empty() || host.version() == "1.0.0");
    drop(agent);
    let unmount = Command::new("umount").args(["-l", &place]).status()?;
    ensure!(unmount.success(), "umount");
    Ok(())
}
