//! The consumer as a process of its own: an HTTP port for health and metrics, and one consumer for each
//! shard of the queue. It has no lease, no key and no sessions; any number of them may run.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use svc_pipeline::{
    consumer::{Acks, Consumer, DepthGauge},
    export::{Export, Exporter},
    metrics::{ExportMetrics, PipelineMetrics},
    queue::Queue,
};
use svc_store::Store;
use tokio_util::sync::CancellationToken;

use super::{
    RunError, open_store, port_problem,
    start::{unless_database_away, wait_for_database},
};
use crate::{
    config::{Consume, Problems, Timing},
    health::Health,
    http::{HttpServer, Pages},
    session::SessionTable,
    startup::{self, StartError},
    supervise::Parts,
    telemetry::Metrics,
};

/// No clients are connected, so there is nothing to drain.
const DRAIN: Duration = Duration::ZERO;

#[derive(Debug)]
pub struct Worker {
    settings: Consume,
    store: Store,
    http: HttpServer,
    pages: Pages,
    pipeline: PipelineMetrics,
    export: Export,
    exporter: Option<Exporter>,
}

impl Worker {
    pub async fn bind(settings: Consume) -> Result<Self, Problems> {
        let metrics = Metrics::default();
        let store = open_store(&settings.database)?;
        metrics.register(|registry| store.register(registry));
        let pipeline = PipelineMetrics::default();
        metrics.register(|registry| pipeline.register(registry));
        let export_metrics = ExportMetrics::default();
        metrics.register(|registry| export_metrics.register(registry));
        let (export, exporter) = Export::new(settings.export.clone(), &store, &export_metrics)
            .map_err(|error| Problems::one("INGEST_OTLP_ENDPOINT", error))?;
        let http = HttpServer::bind(settings.http).await;
        let http = http.map_err(port_problem("INGEST_HTTP_PORT", settings.http));
        let http = http.map_err(|problem| Problems(vec![problem]))?;
        let pages = Pages::new(&store, metrics, settings.timing.health_grace);
        Ok(Self {
            settings,
            store,
            http,
            pages,
            pipeline,
            export,
            exporter,
        })
    }

    pub fn http_address(&self) -> std::io::Result<SocketAddr> {
        self.http.address()
    }

    /// Starts, consumes until `stop`, and returns once its last batch is settled.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let Self {
            settings,
            store,
            http,
            pages,
            pipeline,
            export,
            exporter,
        } = self;
        let health = pages.health.clone();
        let mut parts = Parts::new(stop.clone());
        parts.back("the HTTP port", http.run(pages, parts.last.clone()));
        let starting = start(&settings, &store, &health);
        if let Some(queue) = stop.run_until_cancelled(starting).await {
            let queue = queue?;
            if let Some(exporter) = exporter {
                let export = exporter.run(queue.clone(), parts.last.clone());
                parts.back("the export", export);
            }
            add_all(
                &mut parts,
                &queue,
                &store,
                &pipeline,
                &export,
                &settings.timing,
            );
            tracing::info!("consuming");
            health.serving();
        }
        parts.run(DRAIN, || health.draining()).await?;
        Ok(())
    }
}

/// Gets ready, and starts over when the database goes away halfway.
async fn start(settings: &Consume, store: &Store, health: &Health) -> Result<Queue, StartError> {
    let owner = startup::owner(store, &settings.database)?;
    loop {
        wait_for_database(store, health).await;
        let ready = get_ready(settings, store, &owner, health).await;
        if let Some(ready) = unless_database_away(ready).await {
            return ready;
        }
    }
}

async fn get_ready(
    settings: &Consume,
    store: &Store,
    owner: &Store,
    health: &Health,
) -> Result<Queue, StartError> {
    health.starting("waiting for the schema");
    let patience = settings.timing.schema_patience;
    startup::schema(owner, &settings.database, patience).await?;
    startup::runtime_role(owner, store, &settings.database).await?;
    owner.partitions_create(settings.retention.metrics).await?;
    health.starting("waiting for the metrics queue");
    startup::queue(&settings.queue).await
}

fn add_all(
    parts: &mut Parts,
    queue: &Queue,
    store: &Store,
    pipeline: &PipelineMetrics,
    export: &Export,
    timing: &Timing,
) {
    let last = parts.last.clone();
    let no_sessions = Arc::new(SessionTable::default());
    let acks = || Acks::for_queue(queue, &no_sessions);
    let waits = timing.consumer_waits();
    for consumer in Consumer::for_all_shards(queue, store, acks, pipeline, export, waits) {
        parts.back("the consumer", consumer.run(last.clone()));
    }
    let gauge = DepthGauge {
        queue: queue.clone(),
        pipeline: pipeline.clone(),
    };
    parts.back("the queue's depth", gauge.run(last));
}
