//! From a bound server to an instance that may accept agents.

use std::{sync::Arc, time::Duration};

use svc_pipeline::{export::Export, metrics::PipelineMetrics, queue::Queue};
use svc_store::{NewInstance, Store};
use uuid::Uuid;

use super::instance::Instance;
use crate::{
    clock::DatabaseClock,
    config::Config,
    error_chain::chain,
    freshness::Freshness,
    health::Health,
    http::Pages,
    lease::Lease,
    load::LoadGauge,
    session::{Closer, SessionTable},
    signing::Keyring,
    startup::{self, StartError},
    telemetry::FleetMetrics,
};

/// The pause before a start is repeated that lost the database halfway.
const RETRY: Duration = Duration::from_secs(1);

/// What a start has made.
struct Ready {
    lease: Lease,
    keys: Keyring,
    /// Synchronised before the first time of an agent is judged by it.
    clock: DatabaseClock,
    queue: Queue,
}

/// Gets ready, and starts over when the database goes away halfway.
pub(super) async fn start(
    config: Config,
    store: Store,
    pages: Pages,
    load: LoadGauge,
    sessions: Arc<SessionTable>,
    (pipeline, fleet, export): (PipelineMetrics, FleetMetrics, Export),
    addresses: &[String; 2],
) -> Result<(Instance, Lease), StartError> {
    let owner = startup::owner(&store, &config.database)?;
    let id = Uuid::now_v7();
    let ready = loop {
        wait_for_database(&store, &pages.health).await;
        let parts = (&load, &sessions);
        let ready = get_ready(&config, &store, &owner, &pages, parts, addresses, id).await;
        if let Some(ready) = unless_database_away(ready).await {
            break ready?;
        }
    };
    let Ready {
        lease,
        keys,
        clock,
        queue,
    } = ready;
    sessions.metrics.signing_keys.set(keys.count());
    let keys = Arc::new(keys);
    let instance = Instance {
        closer: Arc::new(Closer::new(config.timing.outage_grace)),
        freshness: Arc::new(Freshness::new(config.timing.freshness)),
        id: lease.id(),
        health: pages.health,
        config,
        store,
        owner,
        sessions,
        updates: Arc::default(),
        settings: Arc::default(),
        trust: Arc::default(),
        moves: Arc::default(),
        pipeline,
        fleet,
        export,
        queue,
        keys,
        clock,
    };
    Ok((instance, lease))
}

pub(super) async fn wait_for_database(store: &Store, health: &Health) {
    health.starting("waiting for the database");
    startup::database(store).await;
}

/// The outcome of a start; `None`, after a pause, if the database went away and the start must be repeated.
pub(super) async fn unless_database_away<T>(
    outcome: Result<T, StartError>,
) -> Option<Result<T, StartError>> {
    match outcome {
        Err(error) if error.is_passing() => {
            tracing::warn!(reason = chain(&error), "waiting for the database");
            tokio::time::sleep(RETRY).await;
            None
        }
        outcome => Some(outcome),
    }
}

/// Everything that must be true before the first agent connects.
async fn get_ready(
    config: &Config,
    store: &Store,
    owner: &Store,
    pages: &Pages,
    (load, sessions): (&LoadGauge, &Arc<SessionTable>),
    [grpc_address, http_address]: &[String; 2],
    id: Uuid,
) -> Result<Ready, StartError> {
    pages.health.starting("waiting for the schema");
    let patience = config.timing.schema_patience;
    startup::schema(owner, &config.database, patience).await?;
    startup::runtime_role(owner, store, &config.database).await?;
    startup::web_role(owner, &config.database).await?;
    owner.partitions_create(config.retention.metrics).await?;
    pages.health.starting("waiting for the metrics queue");
    let queue = startup::queue(&config.queue).await?;
    pages.health.starting("waiting for the signing key");
    let key = startup::signing_key(&config.jwt_key_file, store).await?;
    let keys = Keyring::new(key, config.jwt_extra_keys.clone());
    let kid = keys.signing().kid();
    let instance = NewInstance {
        id,
        kid: kid.to_owned(),
        extra_kids: keys.extra_kids(),
        hostname: hostname(),
        version: crate::VERSION.to_owned(),
        grpc_address: grpc_address.clone(),
        http_address: http_address.clone(),
    };
    let clock = DatabaseClock::synchronised(store).await?;
    let lease = Lease::claim(
        store.clone(),
        instance,
        config.timing,
        sessions.clone(),
        load.clone(),
        clock.clone(),
    )
    .await?;
    drop(pages.jwks.set(keys.jwks()));
    tracing::info!(instance.id = %*lease.id().borrow(), kid, grpc = grpc_address, http = http_address, "serving");
    Ok(Ready {
        lease,
        keys,
        clock,
        queue,
    })
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
