//! How the pools open connections, and which ones they hand out again.
//!
//! A connection has a maximum age, so that instances follow a changed address and memory that a
//! server process has collected is freed. The age is random within a quarter: connections that were
//! opened together do not end together.
//!
//! **Commits that are not replicated.** With `synchronous_standby_names` a COMMIT waits for a standby. If that wait
//! is cancelled, PostgreSQL sends a warning and then reports success, although the standby may not have the
//! transaction. The driver receives both in order, in the task of the connection: `unreplicated` is set before the
//! answer to COMMIT reaches the caller. It is never cleared. Such a connection is not used again, so the warning
//! cannot be taken for one about another transaction.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage, error::DbError};

use crate::pg::{
    cancel::Canceller,
    connect::{Wire, connect},
    error::{Result, StoreError, Unavailability},
    servers::Servers,
    url::DatabaseUrl,
};

const MAX_AGE: Duration = Duration::from_mins(30);

/// The function of PostgreSQL that waits for the standby. Unlike the text of its warning it is never translated, and
/// unlike the SQLSTATE (01000) it is not shared by what triggers and collations warn about.
const REPLICATION_WAIT: &str = "SyncRepWaitForLSN";

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
    unreplicated: Arc<AtomicBool>,
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

    async fn create(&self) -> Result<Connection> {
        let opened = Instant::now();
        // Boxed, because it is rarely needed and large.
        let connected = Box::pin(connect(&self.url, None)).await?;
        let unreplicated = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            client: connected.client,
            canceller: connected.canceller,
            servers: self.servers.clone(),
            driver: tokio::spawn(drive(connected.wire, unreplicated.clone())),
            unreplicated,
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
            && !self.is_unreplicated()
    }

    /// Returns once the connections to this server are discarded.
    pub(crate) async fn stale(&self) {
        let mut discards = self.servers.discards();
        let stale = discards.wait_for(|before| self.opened < *before);
        drop(stale.await);
    }

    /// Whether a commit on this connection has stopped waiting for the standby.
    pub(crate) fn is_unreplicated(&self) -> bool {
        self.unreplicated.load(Ordering::Acquire)
    }

    async fn identity(&self) -> Result<String> {
        let messages = self.client.simple_query(IDENTITY).await?;
        let started = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(started.unwrap_or_default().to_owned())
    }
}

/// Sends and receives until the client is dropped or the connection is lost.
async fn drive(mut wire: Wire, unreplicated: Arc<AtomicBool>) {
    while let Some(Ok(message)) = poll_fn(|cx| wire.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message
            && is_about_replication(&notice)
        {
            unreplicated.store(true, Ordering::Release);
        }
    }
}

fn is_about_replication(notice: &DbError) -> bool {
    notice.routine() == Some(REPLICATION_WAIT)
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
