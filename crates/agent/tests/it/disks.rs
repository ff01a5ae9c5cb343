//! Disks that are full, read-only or stalled: the host stays visible, and the books balance.
//!
//! They mount file systems: `make test-root` runs them.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use svc_testkit::{AUTO, Instance, Process, Site, Usage, assert_contains, token};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::installation::{EPOCH, Installed, TIMES_OFFLINE, away, books_balance};

const STORED: &str = "SELECT stored_count FROM agent_state";
/// Longer than the service tolerates silence of an agent that reports every second: 12 s.
const LONG: Duration = Duration::from_secs(13);

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status();
    let status = status.with_context(|| program.to_owned())?;
    ensure!(status.success(), "{program} {arguments:?}: {status}");
    Ok(())
}

/// A small ext4 file system of its own, which turns read-only after an error.
struct Disk {
    folder: TempDir,
}

impl Disk {
    fn mount() -> Result<Self> {
        let disk = Self {
            folder: tempfile::tempdir()?,
        };
        std::fs::create_dir(disk.path())?;
        let image = disk.folder.path().join("image");
        std::fs::File::create(&image)?.set_len(16 << 20)?;
        let image = image.display().to_string();
        // Small blocks, so that a full disk takes no further sample soon.
        run("mkfs.ext4", &["-q", "-F", "-b", "1024", &image])?;
        let options = "loop,errors=remount-ro";
        run("mount", &["-o", options, &image, &disk.place()])?;
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn place(&self) -> String {
        self.path().display().to_string()
    }

    /// ext4 promises space before it allocates it, so the last blocks are taken one by one.
    fn fill(&self) -> Result<()> {
        let mut ballast = std::fs::File::create(self.path().join("ballast"))?;
        let full = ballast.write_all(&vec![1; 32 << 20]);
        ensure!(full.is_err(), "the disk is not full");
        while ballast.sync_all().is_ok() && ballast.write_all(&[1; 512]).is_ok() {}
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.path().join("ballast"))?)
    }

    /// Lets the kernel find an error, after which it allows no more writes.
    fn fail(&self) -> Result<()> {
        let device = Command::new("findmnt")
            .args(["-no", "SOURCE", &self.place()])
            .output()?;
        let device = String::from_utf8(device.stdout)?;
        let name = Path::new(device.trim()).file_name().context("a device")?;
        let trigger = Path::new("/sys/fs/ext4").join(name);
        std::fs::write(trigger.join("trigger_fs_error"), "a test")?;
        let written = std::fs::write(self.path().join("x"), "x");
        ensure!(written.is_err(), "the disk can still be written");
        Ok(())
    }

    fn freeze(&self) -> Result<()> {
        run("fsfreeze", &["-f", &self.place()])
    }

    fn thaw(&self) -> Result<()> {
        run("fsfreeze", &["-u", &self.place()])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.thaw()); // Usually it is not frozen.
        drop(run("umount", &["-l", &self.place()]));
    }
}

/// A site whose agents report every second, and an agent with its data on that disk.
async fn installed_on(disk: &Disk) -> Result<(Site, Instance, Installed)> {
    let site = Site::new().await?;
    let service = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let service = service.start().await?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    installed.home = Some(disk.path());
    Ok((site, service, installed))
}

/// Starts the binary and waits until its samples arrive.
async fn reporting(site: &Site, installed: &Installed) -> Result<Process> {
    let agent = installed.process(&["run"])?.start()?;
    more_arrive(site, 3).await?;
    Ok(agent)
}

async fn more_arrive(site: &Site, count: u64) -> Result<()> {
    let before: u64 = site.psql(STORED).await?.parse().unwrap_or(0);
    let more = format!("SELECT stored_count >= {} FROM agent_state", before + count);
    site.becomes(&more, "t").await
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn a_full_disk_does_not_hide_the_host() -> Result<()> {
    let disk = Disk::mount()?;
    let (site, _service, installed) = installed_on(&disk).await?;
    let agent = reporting(&site, &installed).await?;
    disk.fill()?;
    agent.logs_contain("samples cannot be stored").await?;
    more_arrive(&site, 3).await?;
    // A crash: the numbers that went through memory are not used again.
    agent.kill().await?;
    let agent = installed.process(&["run"])?.start()?;
    more_arrive(&site, 3).await?;
    agent.logs_contain("the disk is full").await?;

    disk.free()?;
    agent.logs_contain("samples are stored again").await?;
    more_arrive(&site, 3).await?;
    agent.stop().await?;
    let lost = "SELECT count(*) FROM metric_gaps WHERE kind <> 'declared'";
    site.expect(lost, "0").await?;
    books_balance(&site).await
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn a_disk_that_turns_read_only_does_not_hide_the_host() -> Result<()> {
    let disk = Disk::mount()?;
    let (site, _service, installed) = installed_on(&disk).await?;
    let agent = reporting(&site, &installed).await?;
    disk.fail()?;
    agent.logs_contain("samples cannot be stored").await?;
    more_arrive(&site, 3).await?;
    site.expect(EPOCH, "online|1").await?;
    // The disk has no trace of the numbers that were sent since; the service has.
    agent.kill().await?;
    let agent = installed.process(&["run"])?.start()?;
    more_arrive(&site, 3).await?;
    agent.kill().await?;
    let agent = installed.process(&["run"])?.start()?;
    more_arrive(&site, 3).await?;
    agent.stop().await?;
    let few = "SELECT gap_count BETWEEN 1 AND 100, rejected_count FROM agent_state";
    site.expect(few, "t|0").await?;
    books_balance(&site).await
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn a_stalled_disk_delays_no_heartbeat() -> Result<()> {
    let disk = Disk::mount()?;
    let (site, _service, installed) = installed_on(&disk).await?;
    let runtime = tempfile::tempdir()?;
    let with_runtime = |arguments: &[&str]| -> Result<_> {
        let process = installed.process(arguments)?;
        Ok(process.environment([("RUNTIME_DIRECTORY", runtime.path())]))
    };
    let agent = with_runtime(&["run"])?.start()?;
    more_arrive(&site, 3).await?;
    disk.freeze()?;
    let (frozen, mut most_threads) = (Instant::now(), 0);
    while frozen.elapsed() < LONG {
        more_arrive(&site, 3).await?;
        most_threads = most_threads.max(Usage::of(agent.pid())?.threads);
    }
    let status = with_runtime(&["status"])?.run().await?;
    assert_contains(&status.stdout, "the disk has not answered for");
    site.expect(EPOCH, "online|1").await?;
    site.expect(TIMES_OFFLINE, "0").await?;
    ensure!(most_threads <= 4, "{most_threads} threads");

    disk.thaw()?;
    more_arrive(&site, 3).await?;
    agent.stop().await?;
    let status = with_runtime(&["status"])?.run().await?;
    assert_contains(&status.stdout, "samples are stored");
    site.expect("SELECT rejected_count FROM agent_state", "0")
        .await?;
    books_balance(&site).await
}

/// Old samples are only on disk, so newer ones cannot be sent either.
#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn an_agent_whose_backlog_is_on_a_stalled_disk_stays_online() -> Result<()> {
    let disk = Disk::mount()?;
    let (site, _service, mut installed) = installed_on(&disk).await?;
    let proxy = installed.behind_proxy().await?;
    let agent = installed.start()?;
    more_arrive(&site, 1).await?;
    away(&proxy, true)?;
    for _ in 0..20 {
        agent.recorder.take().await;
    }
    agent.stop().await?;
    let agent = installed.start()?;
    let (next, _) = agent.recorder.numbers();
    disk.freeze()?;
    proxy.refuse(false)?;
    site.becomes(EPOCH, "online|2").await?;
    sleep(LONG).await;
    site.expect(EPOCH, "online|2").await?;
    disk.thaw()?;
    let all = format!("SELECT stored_count >= {next} FROM agent_state");
    site.becomes(&all, "t").await?;
    agent.stop().await?;
    books_balance(&site).await
}
