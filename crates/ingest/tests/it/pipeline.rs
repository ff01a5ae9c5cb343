//! Samples from the stream to the database over either queue: what is acknowledged
//! and when, what the database refuses, and the consumer as a process of its own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use svc_ingest::{
    config::queue_settings,
    consumer::{Acks, Consumer},
    queue::{BATCH, Delivery, Origin, Parcel, Queue},
    session::SessionTable,
    telemetry::PipelineMetrics,
};
use svc_sandbox::PostgresOptions;
use svc_store::{DatabaseUrl, Store, StoreOptions};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    agents::{AUTO, FakeAgent, machine, token},
    beats::{Beat, sample},
    fleet::Fleet,
    harness::{Environment, Instance, Site, eventually},
    plant::{BOTH, BRISK, Kind, Plant, metric, range, seed},
};

async fn beat(
    plant: &Plant,
    instance: &Instance,
    number: u32,
) -> Result<(FakeAgent, String, Beat)> {
    let agent = FakeAgent::on(machine(number))?;
    let jwt = agent
        .jwt(instance.grpc, &token(&plant.site, AUTO).await?)
        .await?;
    let beat = agent.beat(instance.grpc, &jwt).await?;
    Ok((agent, jwt, beat))
}

fn store(plant: &Plant) -> Result<Store> {
    let url = DatabaseUrl::parse(&plant.site.database_url())?;
    Ok(Store::new(url, StoreOptions::default())?)
}

async fn queue(plant: &Plant) -> Result<Queue> {
    let environment = Environment::default().set("INGEST_QUEUE_URL", plant.queue_url());
    let settings = queue_settings(&|name| environment.get(name))?;
    Ok(Queue::open(&settings).await?)
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
async fn what_is_acknowledged_is_stored_once_over_either_queue() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instances = [
            plant.instance().start().await?,
            plant.instance().start().await?,
        ];
        let addresses = instances.each_ref().map(|instance| instance.grpc);
        let fleet = Fleet::start(&plant.site, &addresses, 0, 10, BRISK).await?;
        fleet.all_acked_since(Instant::now()).await?;
        fleet
            .audit(&plant.site)
            .await
            .context(format!("{kind:?}"))?;
        let mut acknowledged = 0.0;
        for instance in &instances {
            acknowledged += metric(instance.http, "samples_acknowledged_total").await?;
            ensure!(metric(instance.http, "commit_seconds_count").await? > 0.0);
            ensure!(metric(instance.http, "batch_samples_count").await? > 0.0);
        }
        let taken: u64 = fleet.ledgers().iter().map(|ledger| ledger.acked).sum();
        assert_eq!(acknowledged, taken as f64, "{kind:?}");
    }
    Ok(())
}

#[tokio::test]
async fn rejections_are_named_over_either_queue() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instance = plant.instance().start().await?;
        let (_, _, mut beat) = beat(&plant, &instance, 1).await?;
        let mut bad = sample(2);
        bad.vitals.as_mut().context("vitals")?.cpu_percent = 101.0;
        beat.report(vec![sample(1), bad, sample(3)], vec![]).await?;
        let ack = beat.ack().await?;
        beat.report(vec![sample(3)], vec![]).await?;
        let rejected: Vec<u64> = ack.rejected.iter().map(|rejection| rejection.seq).collect();
        assert_eq!((ack.up_to_seq, rejected), (3, vec![2]), "{kind:?}");
        let books = "SELECT acked_seq, stored_count, rejected_count, gap_count FROM agent_state";
        assert_eq!(plant.site.psql(books).await?, "3|2|1|0");
        eventually("the repetition is counted", async || {
            let counted = metric(instance.http, "samples_duplicate_total").await;
            counted.is_ok_and(|counted| counted == 1.0)
        })
        .await?;
        assert_eq!(metric(instance.http, "samples_rejected_total").await?, 1.0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_their_own_store_what_servers_only_take() -> Result<()> {
    let plant = Plant::new(Kind::Nats).await?;
    let server = plant
        .instance()
        .set("INGEST_CONSUME", "false")
        .start()
        .await?;
    let fleet = Fleet::start(&plant.site, &[server.grpc], 0, 5, BRISK).await?;
    eventually("reports are in the queue", async || {
        metric(server.http, "queue_lag")
            .await
            .is_ok_and(|lag| lag >= 5.0)
    })
    .await?;
    ensure!(
        fleet.ledgers().iter().all(|ledger| ledger.acked == 0),
        "nobody has stored them"
    );
    let mut consumers = [
        plant.consumer().start().await?,
        plant.consumer().start().await?,
    ];
    fleet.all_acked_since(Instant::now()).await?;
    consumers[0].stop().await?;
    fleet.all_acked_since(Instant::now()).await?;
    fleet.audit(&plant.site).await?;
    ensure!(metric(consumers[1].http, "commit_seconds_count").await? > 0.0);
    consumers[1].stop().await
}

#[tokio::test]
async fn a_commit_that_nobody_tells_of_is_found_in_the_database() -> Result<()> {
    let plant = Plant::new(Kind::Nats).await?;
    let server = plant
        .instance()
        .set("INGEST_CONSUME", "false")
        .start()
        .await?;
    let (_, _, mut beat) = beat(&plant, &server, 1).await?;
    beat.report(vec![sample(1), sample(2)], vec![]).await?;
    let queue = queue(&plant).await?;
    for Delivery { parcel, receipt } in take(&queue).await? {
        store(&plant)?.samples_append(&[parcel.range]).await?;
        receipt.settle().await;
    }
    beat.acked(2).await
}

#[tokio::test]
async fn an_agent_sends_again_what_the_queue_has_lost() -> Result<()> {
    let plant = Plant::new(Kind::Nats).await?;
    let server = plant
        .instance()
        .set("INGEST_CONSUME", "false")
        .start()
        .await?;
    let (agent, jwt, mut beat) = beat(&plant, &server, 1).await?;
    beat.report(vec![sample(1), sample(2)], vec![]).await?;
    let queue = queue(&plant).await?;
    for delivery in take(&queue).await? {
        delivery.receipt.settle().await;
    }
    let end = beat
        .end()
        .await?
        .context("it ends with a hint to come back")?;
    assert_eq!(
        (end.reason.as_str(), end.retry),
        ("DATABASE_UNAVAILABLE", true)
    );
    let mut again = agent.beat(server.grpc, &jwt).await?;
    assert_eq!(again.welcome.acked_seq, 0);
    let _consumer = plant.consumer().start().await?;
    again.report(vec![sample(1), sample(2)], vec![]).await?;
    again.acked(2).await
}

/// A report that waits in the queue, because nobody consumes, is not lost.
#[tokio::test]
async fn a_stream_is_kept_for_as_long_as_the_queue_has_its_report() -> Result<()> {
    let plant = Plant::new(Kind::Nats).await?;
    let server = plant
        .instance()
        .set("INGEST_CONSUME", "false")
        .start()
        .await?;
    let (_, _, mut beat) = beat(&plant, &server, 1).await?;
    beat.report(vec![sample(1)], vec![]).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let _consumer = plant.consumer().start().await?;
    beat.acked(1).await
}

#[tokio::test]
async fn a_report_that_overtook_another_waits_for_it() -> Result<()> {
    let plant = Plant::new(Kind::Nats).await?;
    let server = plant
        .instance()
        .set("INGEST_CONSUME", "false")
        .start()
        .await?;
    let (_, _, mut beat) = beat(&plant, &server, 1).await?;
    beat.report(vec![sample(1)], vec![]).await?;
    let queue = queue(&plant).await?;
    let mut first = take(&queue).await?;
    beat.report(vec![sample(2)], vec![]).await?;
    let consumer = plant.consumer().start().await?;
    eventually("the second has been put back", async || {
        let back = metric(consumer.http, "queue_put_back_total").await;
        back.is_ok_and(|back| back >= 2.0)
    })
    .await?;
    let state = "SELECT acked_seq, (SELECT count(*) FROM host_metrics) FROM agent_state";
    assert_eq!(plant.site.psql(state).await?, "0|0");
    let Delivery { parcel, receipt } = first.pop().context("the first")?;
    receipt.put_back(parcel).await;
    beat.acked(2).await?;
    assert_eq!(plant.site.psql(state).await?, "2|2");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_refuses_is_a_dead_letter_and_a_gap_and_harms_nobody_else() -> Result<()>
{
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let poison =
            "ALTER TABLE host_metrics ADD CONSTRAINT unlucky CHECK (memory_used_bytes <> 13)";
        plant.site.psql(poison).await?;
        let instance = plant.instance().start().await?;
        let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 8, BRISK).await?;
        eventually("all are past the thirteenth", async || {
            fleet.ledgers().iter().all(|ledger| ledger.acked > 13)
        })
        .await
        .context(format!("{kind:?}"))?;
        fleet.settle().await?;
        let books = "SELECT count(*), sum(gap_count), sum(stored_count) = (SELECT count(*) FROM host_metrics),
                            bool_and(stored_count + gap_count = acked_seq AND gap_count > 0) FROM agent_state";
        let gaps = "SELECT sum(last_seq - first_seq + 1), bool_and(kind = 'dead letter' AND first_seq <= 13 AND last_seq >= 13),
                           bool_and(reason LIKE '23514: %') FROM metric_gaps";
        let (books, gaps) = (plant.site.psql(books).await?, plant.site.psql(gaps).await?);
        let lost = gaps.split('|').next().context("a sum")?;
        assert_eq!(books, format!("8|{lost}|t|t"), "{kind:?}");
        assert_eq!(gaps, format!("{lost}|t|t"), "{kind:?}");
        assert_eq!(
            metric(instance.http, "dead_letters_total").await?,
            8.0,
            "{kind:?}"
        );
        eventually("their agents are told", async || {
            let told = fleet
                .ledgers()
                .iter()
                .map(|ledger| ledger.rejected)
                .sum::<u64>();
            told.to_string() == lost
        })
        .await
        .context(format!("{kind:?}"))?;
        if kind == Kind::Nats {
            dead_letters_are_readable(&plant).await?;
        }
    }
    Ok(())
}

async fn dead_letters_are_readable(plant: &Plant) -> Result<()> {
    use prost::Message;
    let context = async_nats::jetstream::new(async_nats::connect(plant.queue_url()).await?);
    let stream = context.get_stream("SVC_INGEST_DEAD_LETTERS").await?;
    assert_eq!(stream.cached_info().state.messages, 8);
    let letter = stream.get_raw_message(1).await?;
    let range = svc_proto::queue::v1::Range::decode(letter.payload)?;
    assert!(range.samples.iter().any(|sample| sample.seq == 13));
    let reason = letter
        .headers
        .get("Svc-Ingest-Reason")
        .context("a reason")?;
    assert!(reason.as_str().starts_with("23514: "), "{reason}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_does_not_fit_counts_against_no_sample() -> Result<()> {
    for kind in BOTH {
        let plant = Plant::new(kind).await?;
        let instance = plant.instance().start().await?;
        let fleet = Fleet::start(&plant.site, &[instance.grpc], 0, 3, BRISK).await?;
        fleet.all_acked_since(Instant::now()).await?;
        plant
            .site
            .psql("ALTER TABLE host_metrics RENAME TO away")
            .await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        plant
            .site
            .psql("ALTER TABLE away RENAME TO host_metrics")
            .await?;
        fleet.all_acked_since(Instant::now()).await?;
        fleet
            .audit(&plant.site)
            .await
            .context(format!("{kind:?}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn memory_cannot_be_consumed_by_others() -> Result<()> {
    let plant = Plant::new(Kind::Memory).await?;
    let ended = plant.consumer().run().await?;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("INGEST_QUEUE_URL"),
        "{}",
        ended.stderr
    );
    let ended = plant.process().set("INGEST_CONSUME", "false").run().await?;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("INGEST_CONSUME"), "{}", ended.stderr);
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
    let plant = Plant::on(site, Kind::Memory).await?;
    let agents = seed(&plant.site, 4000).await?;
    let (store, queue) = (store(&plant)?, queue(&plant).await?);
    store.partitions_create(Duration::from_hours(24)).await?;
    let origin = Origin {
        epoch: 1,
        instance: Uuid::nil(),
    };
    for seq in 1..=3 {
        for agent in &agents {
            let range = range(*agent, seq, seq);
            queue.push(Parcel { range, origin }).await;
        }
    }
    plant.site.psql("SELECT pg_stat_statements_reset()").await?;
    let written = "SELECT pg_current_wal_lsn() - '0/0'";
    let before: f64 = plant.site.psql(written).await?.parse()?;
    let sessions = Arc::new(SessionTable::default());
    let stop = CancellationToken::new();
    let acks = || Acks::for_queue(&queue, &sessions);
    let consumers = Consumer::for_all_shards(&queue, &store, acks, &PipelineMetrics::default());
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
    let statements: f64 = plant.site.psql(count).await?.parse()?;
    assert_eq!(
        plant.site.psql("SELECT count(*) FROM host_metrics").await?,
        "12000"
    );
    let each_thousand = statements / 12.0;
    ensure!(each_thousand <= 10.0, "{each_thousand} statements");
    let after: f64 = plant.site.psql(written).await?.parse()?;
    let each = (after - before) / 12_000.0;
    ensure!(each <= 2_000.0, "{each} bytes of WAL a heartbeat");
    Ok(())
}

#[tokio::test]
async fn the_doctor_looks_at_nats_and_makes_nothing_there() -> Result<()> {
    let mut plant = Plant::new(Kind::Nats).await?;
    let doctor = |plant: &Plant| plant.process().arguments(&["doctor"]);
    let looked = doctor(&plant).run().await?;
    ensure!(
        looked.stdout.contains("the first start makes the stream"),
        "{}",
        looked.stdout
    );
    let context = async_nats::jetstream::new(async_nats::connect(plant.queue_url()).await?);
    ensure!(
        context.get_stream("SVC_INGEST_METRICS").await.is_err(),
        "it made one"
    );
    plant.instance().start().await?.stop().await?;
    let looked = doctor(&plant).run().await?;
    ensure!(
        looked.stdout.contains("the stream is as it should be"),
        "{}",
        looked.stdout
    );
    plant.nats().kill().await?;
    let looked = doctor(&plant).run().await?;
    ensure!(
        looked.stdout.contains("NATS does not answer"),
        "{}",
        looked.stdout
    );
    Ok(())
}
