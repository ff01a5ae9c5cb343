//! The faults of docs/reliability.md that concern samples, briefly, over both queues where they
//! differ. `make chaos` runs them at full length.

use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::jetstream;
use svc_ingest::config::Config;
use svc_testkit::{Fleet, Pace, QueueKind, Site, faults, metric, metric_becomes, times_offline};
use tokio::time::sleep;

/// The same SQLSTATE from the same statement as a full disk gives. `make chaos` fills a real one.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_withholds_acknowledgements_and_loses_nothing() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let instance = site.instance().start().await?;
        let fleet = Fleet::reporting(&site, &[instance.grpc], 5, Pace::BRISK).await?;
        let full = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
                      $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
                    CREATE TRIGGER no_room BEFORE INSERT ON samples_open FOR EACH ROW EXECUTE FUNCTION no_room()";
        site.psql(full).await?;
        sleep(Duration::from_secs(1)).await;
        fleet.no_acks_for(Duration::from_secs(3)).await?;
        site.psql("DROP TRIGGER no_room ON samples_open").await?;
        fleet.all_acked_again().await?;
        fleet.audit(&site).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_and_revocation_work_while_the_metrics_table_is_locked() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let instance = site.instance().start().await?;
        let fleet = Fleet::reporting(&site, &[instance.grpc], 5, Pace::BRISK).await?;
        faults::metrics_locked(&site, &instance, 4).await?;
        fleet.all_acked_again().await?;
        fleet.audit(&site).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_stored_once() -> Result<()> {
    QueueKind::each(async |kind| faults::commits_cut(kind, 5, 8).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_connections_leave_a_clean_pool() -> Result<()> {
    QueueKind::each(async |kind| faults::connections_reset(kind, 5, 40).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_of_several_writers_store_everything_once() -> Result<()> {
    let batches = faults::overlapping_writers(30, Duration::from_secs(5)).await?;
    ensure!(batches > 20, "{batches} batches");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn books_balance_after_kills_at_random_moments() -> Result<()> {
    QueueKind::each(async |kind| faults::any_part_killed(kind, 6, 2).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_stored_once_through_a_pgbouncer() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::with_own_server().await?.with_queue(kind).await?;
        let (_bouncer, url) = faults::through_pgbouncer(&site).await?;
        let builder = site.instance().set("DATABASE_URL", &url);
        let instances = builder.start_pair().await?;
        let addresses = instances.each_ref().map(|instance| instance.grpc);
        let fleet = Fleet::start(&site, &addresses, 0, 20, Pace::BRISK).await?;
        sleep(Duration::from_secs(3)).await;
        fleet.all_acked_again().await?;
        fleet.audit(&site).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_withholds_acknowledgements_and_grows_no_further() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Memory).await?;
    let few = |config: &mut Config| config.queue.bounds.samples = 8;
    let instance = site.instance().config(few).start().await?;
    let fleet = Fleet::reporting(&site, &[instance.grpc], 10, Pace::BRISK).await?;
    let lock = site.hold("LOCK TABLE samples_open IN SHARE MODE").await?;
    metric_becomes(instance.http, "queue_samples", |samples| samples == 8.0).await?;
    fleet.no_acks_for(Duration::from_secs(2)).await?;
    ensure!(metric(instance.http, "queue_samples").await? <= 8.0);
    ensure!(metric(instance.http, "queue_oldest_seconds").await? > 0.5);
    lock.release().await?;
    fleet.all_acked_again().await?;
    fleet.audit(&site).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_nats_is_killed_under_load() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let instances = site.instance().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::reporting(&site, &addresses, 10, Pace::BRISK).await?;
    let streams = fleet.streams();
    for _ in 0..2 {
        site.nats().kill().await?;
        sleep(Duration::from_secs(1)).await;
        fleet.no_acks_for(Duration::from_secs(2)).await?;
        site.nats().start_again().await?;
        fleet.all_acked_again().await?;
    }
    fleet.audit(&site).await?;
    ensure!(fleet.streams() == streams, "streams were not kept");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_nats_freezes() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let instance = site.instance().start().await?;
    let fleet = Fleet::reporting(&site, &[instance.grpc], 5, Pace::BRISK).await?;
    site.nats().freeze()?;
    sleep(Duration::from_secs(4)).await;
    site.nats().thaw()?;
    fleet.all_acked_again().await?;
    fleet.audit(&site).await
}

/// Nobody takes the reports out of the queue, so that it can forget them.
#[tokio::test(flavor = "multi_thread")]
async fn agents_whose_reports_the_queue_forgets_send_them_again_and_stay_online() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let builder = site.instance().set("INGEST_CONSUME", "false");
    let instance = builder.start().await?;
    let fleet = Fleet::start(&site, &[instance.grpc], 0, 5, Pace::BRISK).await?;
    metric_becomes(instance.http, "queue_ranges", |reports| reports >= 5.0).await?;
    let nats = async_nats::connect(site.nats().url()).await?;
    let stream = jetstream::new(nats)
        .get_stream("SVC_INGEST_METRICS")
        .await?;
    stream.purge().await?;
    let forgotten = r#"streams_closed_total{cause="unstored"}"#;
    metric_becomes(instance.http, forgotten, |streams| streams >= 1.0).await?;
    let _consuming = site.instance().start().await?;
    fleet.all_acked_again().await?;
    ensure!(times_offline(&site).await? == 0, "agents were offline");
    fleet.audit(&site).await
}
