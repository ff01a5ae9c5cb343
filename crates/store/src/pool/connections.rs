//! How the pools open connections, and which ones they hand out again.
//!
//! A connection has a maximum age, so that instances follow a changed address and memory that a
//! server process has collected is freed. The age is random within a quarter: connections that were
//! opened together do not end together.

use std::{fmt, sync::Arc, time::Duration};

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{
    cancel::Canceller,
    connect::{Connected, connect},
    error::{StoreError, Unavailability},
    servers::Servers,
    url::DatabaseUrl,
};

const MAX_AGE: Duration = Duration::from_mins(30);

/// `pg_postmaster_start_time` identifies a running server, and everyone may call it.
const IDENTITY: &str = "-- server_identity\nSELECT pg_postmaster_start_time()";

pub(crate) type Pool = managed::Pool<Connections>;
/// A connection that is in use. It occupies its place in the pool until it is dropped.
pub(crate) type Object = managed::Object<Connections>;

/// Opens connections for one pool.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) url: DatabaseUrl,
    pub(crate) servers: Arc<Servers>,
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) canceller: Canceller,
    pub(crate) servers: Arc<Servers>,
    driver: JoinHandle<()>,
    opened: Instant,
    expires: Instant,
}

/// How old a connection that is opened now may become.
pub(crate) fn max_age() -> Duration {
    MAX_AGE.mul_f64(rand::random_range(0.75..1.0))
}

impl managed::Manager for Connections {
    type Type = Connection;
    type Error = StoreError;

    async fn create(&self) -> Result<Connection, StoreError> {
        let opened = Instant::now();
        // Boxed, because it is rarely needed and large.
        let connected = Box::pin(connect(&self.url, None)).await?;
        let Connected {
            client,
            wire,
            canceller,
        } = connected;
        let connection = Connection {
            client,
            canceller,
            servers: self.servers.clone(),
            driver: tokio::spawn(async move { drop(wire.await) }),
            opened,
            expires: opened + max_age(),
        };
        let identity = timeout(self.url.connect_timeout(), connection.identity()).await;
        let late = |_| StoreError::unavailable(Unavailability::Connect);
        self.servers.reached(identity.map_err(late)??, opened);
        Ok(connection)
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<StoreError> {
        match connection.is_usable() {
            true => Ok(()),
            false => Err(RecycleError::message("closed, stale or too old")),
        }
    }
}

impl Connection {
    fn is_usable(&self) -> bool {
        !self.client.is_closed()
            && Instant::now() < self.expires
            && !self.servers.is_stale(self.opened)
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let messages = self.client.simple_query(IDENTITY).await?;
        let started = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(started.unwrap_or_default().to_owned())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
