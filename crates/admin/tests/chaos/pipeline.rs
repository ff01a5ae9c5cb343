//! Faults of the pipeline at full length and with strict figures, over both queues.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_sandbox::PostgresOptions;
use svc_testkit::{Fleet, Pace, QueueKind, Site, Usage, faults, metric};
use tokio::time::sleep;

const ROUNDS: usize = 50;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn books_balance_after_fifty_kills_at_random_moments() -> Result<()> {
    for kind in QueueKind::BOTH {
        let began = Instant::now();
        faults::any_part_killed(kind, 50, ROUNDS).await?;
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
    for kind in QueueKind::BOTH {
        faults::commits_cut(kind, 20, 1000).await?;
        println!("{kind:?}: 1,000 connections cut right after COMMIT, everything stored once");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn thousands_of_resets_leave_a_clean_pool() -> Result<()> {
    for kind in QueueKind::BOTH {
        faults::connections_reset(kind, 20, 2500).await?;
        println!("{kind:?}: all connections reset 2,500 times, the pool is clean");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn overlapping_writers_store_everything_once_for_two_minutes() -> Result<()> {
    let batches = faults::overlapping_writers(100, Duration::from_mins(2)).await?;
    println!(
        "4 writers, {batches} overlapping batches of 100 agents: no deadlock reached a caller"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_locked_metrics_table_delays_no_registration_and_no_revocation() -> Result<()> {
    for kind in QueueKind::BOTH {
        let site = Site::new().await?.with_queue(kind).await?;
        let instance = site.instance().start().await?;
        let fleet = Fleet::reporting(&site, &[instance.grpc], 50, Pace::STEADY).await?;
        let slowest = faults::metrics_locked(&site, &instance, 60).await?;
        println!(
            "{kind:?}: metrics table locked 60 s, registration and revocation took {slowest:.0?} at most"
        );
        ensure!(slowest <= Duration::from_secs(1));
        fleet.audit(&site).await?;
    }
    Ok(())
}

/// A mounted file system of a few MiB.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it for the owner of `like`: PostgreSQL needs to own its folders.
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

    /// Fills the remaining space.
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
async fn a_full_disk_withholds_acknowledgements_until_it_has_room() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open)?;
    let mut site = Site::with_server(PostgresOptions::default()).await?;
    let disk = SmallDisk::mount(&folder.path().join("disk"), site.postgres().data_dir())?;
    let location = disk.0.display();
    site.psql(&format!("CREATE TABLESPACE small LOCATION '{location}'"))
        .await?;
    let site = site.with_queue(QueueKind::Memory).await?;
    let instance = site.instance().start().await?;
    let this_hour = site
        .psql("SELECT 'samples_open_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24')")
        .await?;
    site.psql(&format!("ALTER TABLE {this_hour} SET TABLESPACE small"))
        .await?;
    let fleet = Fleet::reporting(&site, &[instance.grpc], 50, Pace::BRISK).await?;
    let filler = disk.fill()?;
    // Existing pages still have room for some rows.
    sleep(Duration::from_secs(10)).await;
    fleet.no_acks_for(Duration::from_secs(5)).await?;
    std::fs::remove_file(filler)?;
    let freed = Instant::now();
    fleet.all_acked_since(freed).await?;
    println!(
        "disk full: nothing acknowledged, all 50 again after {:.1?}",
        freed.elapsed()
    );
    fleet.audit(&site).await?;
    drop((fleet, instance, site));
    drop(disk);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn everything_is_stored_once_through_a_pgbouncer_under_load() -> Result<()> {
    for kind in QueueKind::BOTH {
        let site = Site::with_own_server().await?.with_queue(kind).await?;
        let (_bouncer, url) = faults::through_pgbouncer(&site).await?;
        let builder = site.server_process().set("DATABASE_URL", &url);
        let servers = builder.start_pair().await?;
        let addresses = servers.each_ref().map(|server| server.grpc);
        let fleet = Fleet::start(&site, &addresses, 0, 100, Pace::STEADY).await?;
        sleep(Duration::from_secs(20)).await;
        fleet.audit(&site).await?;
        println!("{kind:?}: through PgBouncer, books balance");
    }
    Ok(())
}

/// How much memory may grow while nothing is stored.
const MOST_GROWTH: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn memory_is_flat_while_nothing_is_consumed() -> Result<()> {
    for kind in QueueKind::BOTH {
        let site = Site::new().await?.with_queue(kind).await?;
        let builder = match kind {
            QueueKind::Memory => site.server_process(),
            QueueKind::Nats => site.server_process().set("INGEST_CONSUME", "false"),
        };
        let server = builder.start().await?;
        let lock = "BEGIN; LOCK TABLE samples_open IN SHARE MODE; SELECT pg_sleep(60); COMMIT";
        let fleet = Fleet::start(&site, &[server.grpc], 0, 200, Pace::STEADY).await?;
        let stalled = async {
            sleep(Duration::from_secs(10)).await;
            let early = Usage::of(server.pid())?.resident;
            fleet.no_acks_for(Duration::from_secs(45)).await?;
            anyhow::Ok((early, Usage::of(server.pid())?.resident))
        };
        let (locked, stalled) = tokio::join!(site.psql(lock), stalled);
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
            QueueKind::Memory => None,
            QueueKind::Nats => Some(site.consumer_process().start().await?),
        };
        fleet.audit(&site).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn nats_killed_twenty_times_under_load_loses_nothing() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let servers = site.server_process().start_pair().await?;
    let addresses = servers.each_ref().map(|server| server.grpc);
    let fleet = Fleet::start(&site, &addresses, 0, 100, Pace::BRISK).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        site.nats().kill().await?;
        sleep(Duration::from_millis(500)).await;
        site.nats().start_again().await?;
        let back = Instant::now();
        fleet.all_acked_since(back).await?;
        slowest = slowest.max(back.elapsed());
    }
    println!("NATS killed 20 times: all 100 acknowledged again after {slowest:.1?} at most");
    fleet.audit(&site).await
}
