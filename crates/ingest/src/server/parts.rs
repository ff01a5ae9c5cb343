//! The one list of the long-lived parts, and how they are joined.

use std::{sync::Arc, time::Duration};

use svc_store::{Bulkhead, Store};
use tokio::sync::Semaphore;

use super::{Doors, Settings, start::Started};
use crate::{
    consumer::{Acks, Consumer, DepthGauge},
    enrol::{Enrolment, Issuer, Turns},
    grpc::{self, Ingest},
    health::Health,
    maintenance::{Maintenance, Rollups},
    queue::Queue,
    session::{self, Backstop, Closer, Hearing, Opener, Sessions, StreamContext, Upkeep},
    supervise::Parts,
    telemetry::PipelineMetrics,
    watch::{Listen, Watch},
};

/// What is left of the drain timeout, once the streams have been ended, for their last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What was there before the start.
pub(super) struct Shared {
    pub store: Store,
    pub sessions: Arc<Sessions>,
    pub pipeline: PipelineMetrics,
}

pub(super) fn add_all(
    parts: &mut Parts,
    settings: &Settings,
    shared: Shared,
    started: Started,
    health: &Health,
    doors: Doors,
) -> anyhow::Result<()> {
    let timing = settings.timing;
    let (stop, last) = (parts.stop.clone(), parts.last.clone());
    let Shared {
        store,
        sessions,
        pipeline,
    } = shared;
    let Started {
        lease,
        key,
        clock,
        queue,
    } = started;
    let key = Arc::new(key);
    let closer = Arc::new(Closer::new(timing.outage_grace));
    let (opener, opener_part) = Opener::new(store.clone(), lease.id(), closer.clone());
    let issuer = Issuer::new(store.clone(), key.clone());
    let watch = Watch::new(
        store.clone(),
        timing,
        sessions.clone(),
        closer.clone(),
        clock.clone(),
        lease.id(),
        stop.clone(),
    );
    let streams = Arc::new(StreamContext {
        sessions: sessions.clone(),
        opener,
        closer: closer.clone(),
        queue: queue.clone(),
        instance: lease.id(),
        pipeline: pipeline.clone(),
        watch: watch.clone(),
        clock,
        agents: settings.agents.clone(),
        retention: settings.retention.metrics,
        timing,
    });
    let ingest = Arc::new(Ingest {
        key,
        enrolment: Enrolment::new(store.clone(), timing.reinstall_quiet),
        turns: Turns::beside(store.connections(Bulkhead::Auth)),
        issuer: issuer.clone(),
        watch: watch.clone(),
        streams,
        openings: Ingest::openings(),
        waiting: Arc::new(Semaphore::new(settings.bystanders)),
        stop: stop.clone(),
    });
    let routes = grpc::routes(ingest, health.clone(), settings.bystanders)?;
    let listen = Listen {
        url: settings.database.listen_url(),
        watch: watch.clone(),
    };
    let upkeep = Upkeep {
        sessions: sessions.clone(),
        issuer,
        watch: watch.clone(),
        timing,
    };
    let consumers = settings.queue.consume.then(|| {
        let acks = || Acks::of(&queue, &sessions);
        Consumer::of_all_shards(&queue, &store, acks, &pipeline)
    });
    let hearing = match &queue {
        Queue::InProcess(_) => None,
        Queue::JetStream(jetstream) => Some(Hearing {
            hints: jetstream.hints(),
            sessions: sessions.clone(),
            instance: lease.id(),
        }),
    };
    let backstop = Backstop {
        sessions: sessions.clone(),
        store: store.clone(),
        queue: queue.clone(),
        timing,
    };
    let drain = settings.drain_timeout.saturating_sub(LAST_WORDS);

    parts.front(
        "the gRPC port",
        doors
            .listener
            .run(doors.tls, routes, stop.clone(), settings.drain_timeout),
    );
    parts.front("the drain", async move {
        stop.cancelled().await;
        session::drain(&sessions, drain).await;
        Ok(())
    });
    let maintenance = Maintenance {
        store: store.clone(),
        direct: settings.database.listen_url(),
        retention: settings.retention,
    };
    let rollups = Rollups {
        store: store.clone(),
        every: timing.rollup,
    };
    parts.back("the maintenance", maintenance.run(last.clone()));
    parts.back("the rollups", rollups.run(last.clone()));
    parts.back("the lease", lease.run(last.clone()));
    parts.back("the watch", watch.run(last.clone()));
    parts.back("the LISTEN connection", listen.run(last.clone()));
    parts.back("the opening of streams", opener_part.run(last.clone()));
    parts.back("the upkeep of streams", upkeep.run(last.clone()));
    for consumer in consumers.into_iter().flatten() {
        parts.back("the consumer", consumer.run(last.clone()));
    }
    if let Some(hearing) = hearing {
        parts.back("the hints of consumers", hearing.run(last.clone()));
    }
    parts.back("the backstop", backstop.run(last.clone()));
    let gauge = DepthGauge { queue, pipeline };
    parts.back("the queue's depth", gauge.run(last.clone()));
    parts.back(
        "the certificate reload",
        doors.reload.run(timing.certificate_poll, last.clone()),
    );
    parts.back("the closing of streams", async move {
        closer.run(&store, last).await;
        Ok(())
    });
    Ok(())
}
