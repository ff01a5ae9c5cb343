//! The faults of docs/reliability.md that concern samples, in short, over both
//! queues where that makes a difference. `make chaos` has them at full length.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_ingest::queue::Bounds;

use crate::{
    fleet::Fleet,
    harness::eventually,
    plant::{BOTH, BRISK, Kind, Plant, metric},
    plant_faults,
};

/// A stand-in for a disk without room: the same SQLSTATE from the same statement.
/// `make chaos` fills a real one.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_withholds_acknowledgements_and_counts_against_nothing() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instance = plant.instance().start().await?;
        let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 5, BRISK).await?;
        fleet.all_acked_since(Instant::now()).await?;
        let full = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                      $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
                    CREATE TRIGGER no_room BEFORE INSERT ON host_metrics FOR EACH ROW EXECUTE FUNCTION no_room()";
        plant.site.psql(full).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let on_their_way = Instant::now();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let meanwhile = fleet.acks_between(on_their_way, Instant::now());
        ensure!(
            meanwhile == 0,
            "{kind:?}: {meanwhile} acknowledgements of nothing"
        );
        plant
            .site
            .psql("DROP TRIGGER no_room ON host_metrics")
            .await?;
        fleet.all_acked_since(Instant::now()).await?;
        fleet
            .audit(&plant.site)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_and_revocation_go_on_while_the_metrics_table_is_locked() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instance = plant.instance().start().await?;
        let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 5, BRISK).await?;
        fleet.all_acked_since(Instant::now()).await?;
        plant_faults::locked(&plant, &instance, 4).await?;
        fleet.all_acked_since(Instant::now()).await?;
        fleet
            .audit(&plant.site)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_stored_once() -> Result<()> {
    for kind in BOTH {
        plant_faults::commits_cut(kind, 5, 20)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_reset_half_way_leave_a_clean_pool() -> Result<()> {
    for kind in BOTH {
        plant_faults::resets(kind, 5, 40)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_of_several_writers_store_everything_once() -> Result<()> {
    let batches = plant_faults::overlapping_writers(30, Duration::from_secs(5)).await?;
    ensure!(batches > 20, "{batches} batches");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn books_balance_after_kills_at_random_moments() -> Result<()> {
    plant_faults::killed_at_random(Kind::Memory, 6, 2).await?;
    plant_faults::killed_at_random(Kind::Nats, 6, 3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_stored_once_through_a_pgbouncer() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::with_own_server(kind).await?;
        let (_bouncer, url) = plant_faults::bounced(&plant.site).await?;
        let instance = || plant.instance().set("DATABASE_URL", &url);
        let instances = [instance().start().await?, instance().start().await?];
        let addresses = instances.each_ref().map(|instance| instance.grpc);
        let fleet = Fleet::start(&plant.site, &addresses, 0, 20, BRISK).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        fleet.all_acked_since(Instant::now()).await?;
        fleet
            .audit(&plant.site)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_withholds_acknowledgements_and_holds_no_more() -> Result<()> {
    let plant = Plant::new(Kind::Memory).await?;
    let few = Bounds {
        samples: 8,
        ..Bounds::default()
    };
    let instance = plant.instance().bounds(few).start().await?;
    let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 10, BRISK).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let lock = "BEGIN; LOCK TABLE host_metrics IN SHARE MODE; SELECT pg_sleep(6); COMMIT";
    let stalled = async {
        eventually("the queue is full", async || {
            metric(instance.http, "queue_samples")
                .await
                .is_ok_and(|samples| samples == 8.0)
        })
        .await?;
        let full = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let acks = fleet.acks_between(full, Instant::now());
        ensure!(acks == 0, "{acks} acknowledgements of nothing");
        ensure!(metric(instance.http, "queue_samples").await? <= 8.0);
        ensure!(metric(instance.http, "queue_oldest_seconds").await? > 0.5);
        Ok(())
    };
    let (locked, stalled) = tokio::join!(plant.site.psql(lock), stalled);
    locked?;
    stalled?;
    fleet.all_acked_since(Instant::now()).await?;
    fleet.audit(&plant.site).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_be_killed_under_load_and_nothing_is_lost() -> Result<()> {
    let mut plant = Plant::new(Kind::Nats).await?;
    let instances = [
        plant.instance().start().await?,
        plant.instance().start().await?,
    ];
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::start(&plant.site, &addresses, 0, 10, BRISK).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let streams = fleet.streams();
    for _ in 0..2 {
        plant.nats().kill().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let away = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let acks = fleet.acks_between(away, Instant::now());
        plant.nats().start_again().await?;
        ensure!(acks == 0, "{acks} acknowledgements of nothing");
        fleet.all_acked_since(Instant::now()).await?;
    }
    fleet.audit(&plant.site).await?;
    ensure!(fleet.streams() == streams, "streams were not kept");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nats_that_freezes_is_waited_for() -> Result<()> {
    let mut plant = Plant::new(Kind::Nats).await?;
    let instance = plant.instance().start().await?;
    let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 5, BRISK).await?;
    fleet.all_acked_since(Instant::now()).await?;
    plant.nats().freeze()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    plant.nats().thaw()?;
    fleet.all_acked_since(Instant::now()).await?;
    fleet.audit(&plant.site).await
}
