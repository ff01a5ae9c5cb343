//! From a bound server to one that may let agents in.

use std::{sync::Arc, time::Duration};

use svc_store::{NewInstance, Store};
use uuid::Uuid;

use super::{Settings, chain};
use crate::{
    clock::DatabaseClock,
    http::Pages,
    presence::Lease,
    queue::Queue,
    session::Sessions,
    signing::SigningKey,
    startup::{self, StartError},
};

/// Before a start that lost the database half way begins anew.
pub(super) const START_PAUSE: Duration = Duration::from_secs(1);

/// What a start has brought about.
pub(super) struct Started {
    pub lease: Lease,
    pub key: SigningKey,
    /// Set before the first agent's times are judged by it.
    pub clock: DatabaseClock,
    pub queue: Queue,
}

/// Gets ready, and starts over when the database goes away half way.
pub(super) async fn start(
    settings: &Settings,
    store: &Store,
    pages: &Pages,
    sessions: &Arc<Sessions>,
    addresses: &[String; 2],
) -> Result<Started, StartError> {
    let id = Uuid::now_v7();
    loop {
        pages.health.starting("waiting for the database");
        startup::database(store).await;
        match get_ready(settings, store, pages, sessions, addresses, id).await {
            Err(error) if error.is_passing() => {
                tracing::warn!(reason = chain(error), "waiting for the database");
                tokio::time::sleep(START_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Everything that must be true before the first agent is let in.
async fn get_ready(
    settings: &Settings,
    store: &Store,
    pages: &Pages,
    sessions: &Arc<Sessions>,
    [grpc_address, http_address]: &[String; 2],
    id: Uuid,
) -> Result<Started, StartError> {
    pages.health.starting("waiting for the schema");
    let patience = settings.timing.schema_patience;
    startup::schema(store, settings.database.auto_migrate, patience).await?;
    startup::web_role(store, &settings.database).await?;
    store.samples_prepare(settings.retention.metrics).await?;
    pages.health.starting("waiting for the metrics queue");
    let queue = startup::queue(&settings.queue).await?;
    pages.health.starting("waiting for the signing key");
    let key = startup::signing_key(&settings.jwt_key_file, store).await?;
    let instance = NewInstance {
        id,
        kid: key.kid().to_owned(),
        hostname: hostname(),
        version: crate::VERSION.to_owned(),
        grpc_address: grpc_address.clone(),
        http_address: http_address.clone(),
    };
    let lease = Lease::claim(store.clone(), instance, settings.timing, sessions.clone()).await?;
    let clock = DatabaseClock::default();
    clock.set_offset(store.database_clock_offset().await?);
    drop(pages.jwks.set(key.jwks()));
    tracing::info!(instance.id = %*lease.id().borrow(), kid = key.kid(), grpc = grpc_address, http = http_address, "serving");
    Ok(Started {
        lease,
        key,
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
