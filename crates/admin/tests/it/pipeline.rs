//! Samples from the stream to the database over either queue: acknowledgements, samples that the
//! database refuses, and the consumer as a process of its own.

mod batches;
mod dead_letters;
mod hints;
mod out_of_order;
mod time_limits;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use svc_ingest::{
    config::{Timing, queue_settings},
    session::SessionTable,
};
use svc_pipeline::{
    consumer::{Acks, Consumer},
    export::Export,
    metrics::PipelineMetrics,
    queue::{BATCH, Delivery, Parcel, Queue},
};
use svc_proto::v1::{Disk, Interface, Pressure};
use svc_sandbox::PostgresOptions;
use svc_testkit::{
    ActiveAgent, Environment, Fleet, HeartbeatCall, Instance, Pace, QueueKind, Site,
    assert_contains, eventually, metric, metric_becomes, range, sample, seed,
};
use tokio_util::sync::CancellationToken;

use crate::{commands::output_of, queue::ORIGIN};

async fn queue(site: &Site) -> Result<Queue> {
    let environment = Environment::default().set("INGEST_QUEUE_URL", site.queue_url());
    let settings = queue_settings(&|name| environment.get(name))?;
    Ok(Queue::open(&settings).await?)
}

/// An instance that puts reports into NATS and consumes none.
async fn without_consumer() -> Result<(Site, Instance)> {
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let builder = site.instance().set("INGEST_CONSUME", "false");
    let server = builder.start().await?;
    Ok((site, server))
}

/// An agent with a stream to such an instance.
async fn agent_without_consumer() -> Result<(Site, Instance, ActiveAgent, HeartbeatCall)> {
    let (site, server) = without_consumer().await?;
    let agent = ActiveAgent::new(&site, server.grpc, 1).await?;
    let call = agent.heartbeat().await?;
    Ok((site, server, agent, call))
}

/// The next deliveries of all shards, at least one.
async fn take(queue: &Queue) -> Result<Vec<Delivery>> {
    let (mut receivers, mut taken) = (queue.receivers(), Vec::new());
    eventually("something is delivered", async || {
        for receiver in &mut receivers {
            taken.extend(receiver.batch(BATCH).await);
        }
        !taken.is_empty()
    })
    .await?;
    Ok(taken)
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_samples_are_stored_once_over_either_queue() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let instances = site.instance().start_pair().await?;
        let addresses = instances.each_ref().map(|instance| instance.grpc);
        let fleet = Fleet::reporting(&site, &addresses, 10, Pace::BRISK).await?;
        fleet.audit(&site).await?;
        let mut acknowledged = 0.0;
        for instance in &instances {
            acknowledged += metric(instance.http, "samples_acknowledged_total").await?;
            ensure!(metric(instance.http, "commit_seconds_count").await? > 0.0);
            ensure!(metric(instance.http, "batch_samples_count").await? > 0.0);
        }
        assert_eq!(acknowledged, fleet.acked() as f64, "{kind:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn optional_vitals_become_parts_over_either_queue() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let (_instance, agent) = site.instance().with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        let with = |seq| {
            let mut sample = sample(seq);
            let vitals = sample.vitals.get_or_insert_default();
            vitals.disks = vec![Disk {
                mount_point: "/".into(),
                total_bytes: 100,
                used_bytes: 40,
                available_bytes: Some(50),
                read_only: Some(false),
                ..Disk::default()
            }];
            vitals.interfaces = vec![Interface {
                name: "eth0".into(),
                rx_bytes: 1000 * seq,
                tx_bytes: 7,
            }];
            vitals.pressure = Some(Pressure {
                io_full_ms: Some(3),
                ..Pressure::default()
            });
            vitals.unreadable_mounts = vec!["/mnt/nfs".into()];
            vitals.spool_problem = "the disk is full".into();
            sample
        };
        call.report(vec![with(1), with(2)], vec![]).await?;
        assert_eq!(call.next_ack().await?.up_to_seq, 2);
        let parts = "SELECT string_agg(concat_ws(' ', kind, name, value), ', ' ORDER BY kind, value) FROM host_metric_parts
                      WHERE sampled_at = (SELECT vitals_at FROM host_vitals)";
        site.expect(
            parts,
            "disk_available / 50, disk_read_only / 0, disk_total / 100, disk_used / 40, interface_rx_bytes eth0 2000, \
             interface_tx_bytes eth0 7, pressure_io_full_ms  3",
        )
        .await?;
        let increase = "SELECT sum(increase) FROM host_metric_parts_hourly WHERE kind = 'interface_rx_bytes'";
        site.expect(increase, "1000").await?;
        let latest = "SELECT unreadable_mounts, spool_problem FROM host_overview";
        site.expect(latest, "[\"/mnt/nfs\"]|the disk is full")
            .await?;
        let shown = output_of(&site, &["host", "show", "web-1"]).await?;
        assert_contains(&shown, "the disk is full");
        assert_contains(&shown, "/mnt/nfs");
        agent.heartbeat().await?.report_acked(3..=3).await?;
        site.expect(latest, "|").await
    })
    .await
}

#[tokio::test]
async fn rejections_are_named_over_either_queue() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let (instance, agent) = site.instance().with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        let mut bad = sample(2);
        bad.vitals.as_mut().context("vitals")?.cpu_percent = 101.0;
        call.report(vec![sample(1), bad, sample(3)], vec![]).await?;
        let ack = call.next_ack().await?;
        call.report(vec![sample(3)], vec![]).await?;
        let rejected: Vec<u64> = ack.rejected.iter().map(|rejection| rejection.seq).collect();
        assert_eq!((ack.up_to_seq, rejected), (3, vec![2]), "{kind:?}");
        let books = "SELECT acked_seq, stored_count, rejected_count, gap_count FROM agent_state";
        site.expect(books, "3|2|1|0").await?;
        metric_becomes(instance.http, "samples_duplicate_total", |n| n == 1.0).await?;
        assert_eq!(metric(instance.http, "samples_rejected_total").await?, 1.0);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_processes_store_what_servers_put_into_the_queue() -> Result<()> {
    let (site, server) = without_consumer().await?;
    let fleet = Fleet::start(&site, &[server.grpc], 0, 5, Pace::BRISK).await?;
    metric_becomes(server.http, "queue_lag", |lag| lag >= 5.0).await?;
    ensure!(fleet.acked() == 0, "nothing is stored yet");
    let consumers = site.consumer_process().start_pair().await?;
    fleet.all_acked_again().await?;
    consumers[0].stop().await?;
    fleet.all_acked_again().await?;
    fleet.audit(&site).await?;
    ensure!(metric(consumers[1].http, "commit_seconds_count").await? > 0.0);
    consumers[1].stop().await
}

#[tokio::test]
async fn a_commit_without_a_hint_is_found_in_the_database() -> Result<()> {
    let (site, _server, _agent, mut call) = agent_without_consumer().await?;
    call.report(vec![sample(1), sample(2)], vec![]).await?;
    let queue = queue(&site).await?;
    for Delivery { parcel, receipt } in take(&queue).await? {
        site.store()?.samples_append(&[parcel.range]).await?;
        receipt.settle().await;
    }
    call.acked_up_to(2).await
}

#[tokio::test]
async fn an_agent_resends_a_report_that_the_queue_has_lost() -> Result<()> {
    let (site, _server, agent, mut call) = agent_without_consumer().await?;
    call.report(vec![sample(1), sample(2)], vec![]).await?;
    let queue = queue(&site).await?;
    for delivery in take(&queue).await? {
        delivery.receipt.settle().await;
    }
    let end = call.end().await?.context("the stream ended with OK")?;
    assert!(end.retry && end.reason == "DATABASE_UNAVAILABLE", "{end:?}");
    let mut again = agent.heartbeat().await?;
    assert_eq!(again.welcome.acked_seq, 0);
    let _consumer = site.consumer_process().start().await?;
    again.report(vec![sample(1), sample(2)], vec![]).await?;
    again.acked_up_to(2).await
}

/// A report that waits in the queue because nothing consumes it is not lost.
#[tokio::test]
async fn a_stream_stays_open_while_the_queue_holds_its_report() -> Result<()> {
    let (site, _server, _agent, mut call) = agent_without_consumer().await?;
    call.report(vec![sample(1)], vec![]).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let _consumer = site.consumer_process().start().await?;
    call.acked_up_to(1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_makes_no_sample_a_dead_letter() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let instance = site.instance().start().await?;
        let fleet = Fleet::reporting(&site, &[instance.grpc], 3, Pace::BRISK).await?;
        site.psql("ALTER TABLE samples_open RENAME TO away").await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        site.psql("ALTER TABLE away RENAME TO samples_open").await?;
        fleet.all_acked_again().await?;
        fleet.audit(&site).await
    })
    .await
}

#[tokio::test]
async fn the_memory_queue_has_no_separate_consumer() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Memory).await?;
    let server = site.server_process().set("INGEST_CONSUME", "false");
    for (process, variable) in [
        (site.consumer_process(), "INGEST_QUEUE_URL"),
        (server, "INGEST_CONSUME"),
    ] {
        let ended = process.exits(2).await?;
        assert_contains(&ended.stderr, variable);
    }
    Ok(())
}

/// Counted by PostgreSQL itself, BEGIN, SET and COMMIT included.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_thousand_heartbeats_cost_ten_statements_and_two_megabytes_of_wal()
-> Result<()> {
    let options = PostgresOptions {
        settings: vec![(
            "shared_preload_libraries".into(),
            "pg_stat_statements".into(),
        )],
        ..PostgresOptions::default()
    };
    let site = Site::with_server(options).await?;
    site.psql("CREATE EXTENSION pg_stat_statements").await?;
    let site = site.with_queue(QueueKind::Memory).await?;
    let agents = seed(&site, 4000).await?;
    let (store, queue) = (site.store()?, queue(&site).await?);
    store.partitions_create(Duration::from_hours(24)).await?;
    for seq in 1..=3 {
        for agent in &agents {
            let range = range(*agent, seq, seq);
            let origin = ORIGIN;
            queue.push(Parcel { range, origin }).await;
        }
    }
    site.psql("SELECT pg_stat_statements_reset()").await?;
    let written = "SELECT pg_current_wal_lsn() - '0/0'";
    let before: f64 = site.psql(written).await?.parse()?;
    let sessions = Arc::new(SessionTable::default());
    let stop = CancellationToken::new();
    let acks = || Acks::for_queue(&queue, &sessions);
    let consumers = Consumer::for_all_shards(
        &queue,
        &store,
        acks,
        &PipelineMetrics::default(),
        &Export::default(),
        Timing::default().consumer_waits(),
    );
    let consuming: Vec<_> = consumers
        .into_iter()
        .map(|consumer| tokio::spawn(consumer.run(stop.clone())))
        .collect();
    eventually("everything is stored", async || {
        queue.depth().await.is_ok_and(|depth| depth.ranges == 0)
    })
    .await?;
    stop.cancel();
    for consumer in consuming {
        consumer.await??;
    }
    let count =
        "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";
    let statements: f64 = site.psql(count).await?.parse()?;
    site.expect("SELECT count(*) FROM host_metrics", "12000")
        .await?;
    let each_thousand = statements / 12.0;
    ensure!(each_thousand <= 10.0, "{each_thousand} statements");
    let after: f64 = site.psql(written).await?.parse()?;
    let each = (after - before) / 12_000.0;
    ensure!(each <= 2_000.0, "{each} bytes of WAL a heartbeat");
    Ok(())
}

#[tokio::test]
async fn the_doctor_checks_nats_and_creates_nothing() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let doctor = |site: &Site| site.server_process().arguments(&["doctor"]);
    let looked = doctor(&site).run().await?;
    assert_contains(&looked.stdout, "the first start makes the stream");
    let context = async_nats::jetstream::new(async_nats::connect(site.queue_url()).await?);
    ensure!(
        context.get_stream("SVC_INGEST_METRICS").await.is_err(),
        "it created the stream"
    );
    site.instance().start().await?.stop().await?;
    let looked = doctor(&site).run().await?;
    assert_contains(&looked.stdout, "the stream is as it should be");
    site.nats().kill().await?;
    let looked = doctor(&site).run().await?;
    assert_contains(&looked.stdout, "NATS does not answer");
    Ok(())
}
