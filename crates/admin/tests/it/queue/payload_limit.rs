//! The largest message that NATS accepts: too small a limit stops the start, or later the reports that exceed it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use svc_pipeline::queue::Queue;
use svc_sandbox::Nats;
use svc_testkit::{PATIENCE, Site, assert_contains};
use tokio::time::timeout;

use super::{agent, open, parcel, settings, settle, take};

/// NATS with this setting, in a file that a restart reads again.
async fn limited(config: &Path, max_payload: usize) -> Result<Nats> {
    std::fs::write(config, format!("max_payload: {max_payload}\n"))?;
    Nats::with(["-c".as_ref(), config.as_os_str()]).await
}

#[tokio::test]
async fn a_limit_that_is_too_small_is_an_error_that_says_what_to_set() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nats = limited(&folder.path().join("nats.conf"), 65_536).await?;
    let settings = settings(&nats.url())?;
    let opened = timeout(PATIENCE, Queue::open(&settings)).await?;
    let error = opened.err().context("it opens")?.to_string();
    ensure!(
        error.contains("65536") && error.contains("set max_payload to 524288"),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_service_before_a_limit_that_is_too_small_exits_and_says_what_to_set() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nats = limited(&folder.path().join("nats.conf"), 65_536).await?;
    let site = Site::new().await?;
    let process = site.process().set("INGEST_QUEUE_URL", nats.url());
    let ended = process.exits(2).await?;
    assert_contains(
        &ended.stderr,
        "INGEST_QUEUE_URL: NATS accepts messages of 65536 bytes at most: set max_payload to 524288",
    );
    Ok(())
}

#[tokio::test]
async fn a_report_that_has_become_too_large_is_gone_and_smaller_ones_arrive() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("nats.conf");
    let mut nats = limited(&config, 1 << 20).await?;
    let queue = open(&nats).await?;
    nats.kill().await?;
    std::fs::write(&config, "max_payload: 2048\n")?;
    nats.start_again().await?;
    let mut receivers = queue.receivers();
    queue.push(parcel(agent(1), 1, 1)).await;
    settle(take(&mut receivers, 1).await?).await;
    let large = timeout(PATIENCE, queue.push(parcel(agent(2), 1, 500))).await;
    let large = large.context("the push waits for ever")?;
    ensure!(queue.gone(&[large]).await?.contains(&large), "it waits");
    queue.push(parcel(agent(1), 2, 2)).await;
    settle(take(&mut receivers, 1).await?).await;
    Ok(())
}
