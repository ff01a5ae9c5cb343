//! Faults on the way of the samples, at full length and with strict figures, over
//! both queues.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use svc_sandbox::PostgresOptions;
use tokio::time::sleep;

use crate::{
    fleet::{Fleet, Pace},
    harness::Site,
    plant::{BOTH, BRISK, Kind, Plant, metric},
    plant_faults,
};

const ROUNDS: usize = 50;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn books_balance_after_fifty_kills_at_random_moments() -> Result<()> {
    for kind in BOTH {
        let began = Instant::now();
        plant_faults::killed_at_random(kind, 50, ROUNDS).await?;
        println!(
            "{kind:?}: {ROUNDS} kills under load, books balance every time ({:.0?})",
            began.elapsed()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_thousand_commits_whose_answers_are_lost_are_stored_once() -> Result<()> {
    for kind in BOTH {
        plant_faults::commits_cut(kind, 20, 1000).await?;
        println!("{kind:?}: 1,000 connections cut right after COMMIT, everything stored once");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn thousands_of_resets_leave_a_clean_pool() -> Result<()> {
    for kind in BOTH {
        plant_faults::resets(kind, 20, 2500).await?;
        println!("{kind:?}: all connections reset 2,500 times, the pool is clean");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn overlapping_writers_go_on_for_two_minutes() -> Result<()> {
    let batches = plant_faults::overlapping_writers(100, Duration::from_mins(2)).await?;
    println!(
        "4 writers, {batches} overlapping batches of 100 agents: no deadlock reached a caller"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_locked_metrics_table_holds_up_no_registration_and_no_revocation() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instance = plant.instance().start().await?;
        let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 50, Pace::default()).await?;
        fleet.all_acked_since(Instant::now()).await?;
        let slowest = plant_faults::locked(&plant, &instance, 60).await?;
        println!(
            "{kind:?}: metrics table locked 60 s, registration and revocation took {slowest:.0?} at most"
        );
        ensure!(slowest <= Duration::from_secs(1));
        fleet.audit(&plant.site).await?;
    }
    Ok(())
}

/// A file system of a few MiB, for as long as this lives.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// For who owns `like`: PostgreSQL wants its folders for itself.
    fn mount(path: &Path, like: &Path) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let owner = std::fs::metadata(like)?;
        let (uid, gid) = (owner.uid(), owner.gid());
        let size = format!("size=16m,mode=0700,uid={uid},gid={gid}");
        let options = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let status = Command::new("mount").args(options).arg(path).status()?;
        ensure!(status.success(), "mount: {status}");
        Ok(Self(path.to_owned()))
    }

    /// Takes all the room that is left.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path)?;
        let zeros = vec![0; 64 << 10];
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict, and needs root to mount a small disk: run by make chaos"]
async fn a_disk_that_is_really_full_withholds_acknowledgements_until_it_is_not() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open)?;
    let mut site = Site::with_server(PostgresOptions::default()).await?;
    let disk = SmallDisk::mount(&folder.path().join("disk"), site.server().data_dir())?;
    let location = disk.0.display();
    site.psql(&format!("CREATE TABLESPACE small LOCATION '{location}'"))
        .await?;
    let plant = Plant::on(site, Kind::Memory).await?;
    let instance = plant.instance().start().await?;
    let today = plant
        .site
        .psql("SELECT 'host_metrics_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        .await?;
    plant
        .site
        .psql(&format!("ALTER TABLE {today} SET TABLESPACE small"))
        .await?;
    let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 50, BRISK).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let filler = disk.fill()?;
    // Pages that have room still take some.
    sleep(Duration::from_secs(10)).await;
    let full = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let acks = fleet.acks_between(full, Instant::now());
    std::fs::remove_file(filler)?;
    ensure!(acks == 0, "{acks} acknowledgements of nothing");
    let freed = Instant::now();
    fleet.all_acked_since(freed).await?;
    println!(
        "disk full: nothing acknowledged, all 50 again after {:.1?}",
        freed.elapsed()
    );
    fleet.audit(&plant.site).await?;
    drop((fleet, instance, plant));
    drop(disk);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_pgbouncer_in_between_changes_nothing() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::with_own_server(kind).await?;
        let (_bouncer, url) = plant_faults::bounced(&plant.site).await?;
        let process = || plant.process().set("DATABASE_URL", &url);
        let servers = [process().start().await?, process().start().await?];
        let addresses = servers.each_ref().map(|server| server.grpc);
        let fleet = Fleet::start(&plant.site, &addresses, 0, 100, Pace::default()).await?;
        sleep(Duration::from_secs(20)).await;
        fleet.audit(&plant.site).await?;
        println!("{kind:?}: through PgBouncer, books balance");
    }
    Ok(())
}

/// What an instance may grow by while nothing is stored.
const MOST_GROWTH: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn memory_is_flat_while_nothing_is_consumed() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let builder = match kind {
            Kind::Memory => plant.process(),
            Kind::Nats => plant.process().set("INGEST_CONSUME", "false"),
        };
        let server = builder.start().await?;
        let lock = "BEGIN; LOCK TABLE host_metrics IN SHARE MODE; SELECT pg_sleep(60); COMMIT";
        let fleet = Fleet::start(&plant.site, &[server.grpc], 0, 200, Pace::default()).await?;
        let stalled = async {
            sleep(Duration::from_secs(10)).await;
            let (early, since) = (memory(server.pid()?)?, Instant::now());
            sleep(Duration::from_secs(45)).await;
            let acks = fleet.acks_between(since, Instant::now());
            ensure!(acks == 0, "{acks} acknowledgements of nothing");
            Ok((early, memory(server.pid()?)?))
        };
        let (locked, stalled) = tokio::join!(plant.site.psql(lock), stalled);
        locked?;
        let (early, late) = stalled?;
        let depth = metric(server.http, "queue_ranges").await?;
        println!(
            "{kind:?}: stalled 45 s, {} MiB then {} MiB, {depth} reports queued",
            early >> 20,
            late >> 20
        );
        ensure!(late < early + MOST_GROWTH);
        let _consumer = match kind {
            Kind::Memory => None,
            Kind::Nats => Some(plant.consumer().start().await?),
        };
        fleet.audit(&plant.site).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn nats_killed_twenty_times_under_load_loses_nothing() -> Result<()> {
    let mut plant = Plant::new(Kind::Nats).await?;
    let servers = [
        plant.process().start().await?,
        plant.process().start().await?,
    ];
    let addresses = servers.each_ref().map(|server| server.grpc);
    let fleet = Fleet::start(&plant.site, &addresses, 0, 100, BRISK).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        plant.nats().kill().await?;
        sleep(Duration::from_millis(500)).await;
        plant.nats().start_again().await?;
        let back = Instant::now();
        fleet.all_acked_since(back).await?;
        slowest = slowest.max(back.elapsed());
    }
    println!("NATS killed 20 times: all 100 acknowledged again after {slowest:.1?} at most");
    fleet.audit(&plant.site).await
}

fn memory(pid: Pid) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context("VmRSS")?.parse::<u64>()? << 10)
}
