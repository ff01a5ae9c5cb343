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
//!
//! A commit on a server that was replaced meanwhile (`servers.rs`) is treated in the same way: its outcome is unknown.

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
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage, SimpleQueryRow, error::DbError};

use crate::pg::{
    cancel::Canceller,
    connect::{Wire, connect},
    error::{Result, StoreError, Unavailability},
    servers::{History, Identity, Servers},
    url::DatabaseUrl,
};

const MAX_AGE: Duration = Duration::from_mins(30);

/// The function of PostgreSQL that waits for the standby. Unlike the text of its warning it is never translated, and
/// unlike the SQLSTATE (01000) it is not shared by what triggers and collations warn about.
const REPLICATION_WAIT: &str = "SyncRepWaitForLSN";

/// `pg_postmaster_start_time` identifies a running server, and everyone may call it.
const IDENTITY: &str = "-- server_identity\nSELECT pg_postmaster_start_time()";

/// The cluster and the timeline of a primary; the name of a WAL segment begins with its timeline. Asked apart, because a server
/// that is only compatible with PostgreSQL may not know these functions.
const HISTORY: &str = "-- server_identity
SELECT system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8)
  FROM pg_control_system() WHERE NOT pg_is_in_recovery()";

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
    server: Identity,
    unreplicated: Arc<AtomicBool>,
    _driver: AbortOnDrop,
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

    /// A server that was replaced is passed over, like one that refuses writes.
    async fn create(&self) -> Result<Connection> {
        let mut outcome = self.open().await;
        for _ in 1..self.url.hosts() {
            if !matches!(&outcome, Err(error) if error.is_about_a_replaced_server()) {
                break;
            }
            self.url.pass();
            outcome = self.open().await;
        }
        outcome
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<StoreError> {
        match connection.is_usable() {
            true => Ok(()),
            false => Err(RecycleError::message("closed, stale or too old")),
        }
    }
}

impl Connections {
    /// Opens a connection to any server but the present one, if another accepts writes, and to the present one otherwise.
    pub(crate) async fn look_elsewhere(&self) -> Result<Connection> {
        self.url.pass();
        managed::Manager::create(self).await
    }

    async fn open(&self) -> Result<Connection> {
        let opened = Instant::now();
        // Boxed, because it is rarely needed and large.
        let connected = Box::pin(connect(&self.url, None)).await?;
        let unreplicated = Arc::new(AtomicBool::new(false));
        let client = connected.client;
        let driver = tokio::spawn(drive(connected.wire, unreplicated.clone()));
        let driver = AbortOnDrop(driver);
        let server = timeout(self.url.connect_timeout(), identity(&client)).await;
        let server = server.map_err(|_| StoreError::unavailable(Unavailability::Connect))??;
        if !self.servers.reached(&server, opened) {
            return Err(StoreError::unavailable(Unavailability::Replaced));
        }
        Ok(Connection {
            client,
            canceller: connected.canceller,
            servers: self.servers.clone(),
            server,
            unreplicated,
            _driver: driver,
            opened,
            expires: opened + max_age(),
        })
    }
}

impl Connection {
    fn is_usable(&self) -> bool {
        !self.client.is_closed()
            && Instant::now() < self.expires
            && !self.is_stale()
            && self.trusted().is_ok()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.servers.is_stale(self.opened)
    }

    /// Returns once the connections to this server are discarded.
    pub(crate) async fn stale(&self) {
        let mut discards = self.servers.discards();
        let stale = discards.wait_for(|before| self.opened < *before);
        drop(stale.await);
    }

    /// Fails if a commit on this connection has stopped waiting for the standby, or if its server was replaced.
    pub(crate) fn trusted(&self) -> Result<()> {
        if self.unreplicated.load(Ordering::Acquire) {
            return Err(StoreError::unavailable(Unavailability::Unreplicated));
        }
        match self.servers.replaced(&self.server) {
            true => Err(StoreError::unavailable(Unavailability::Replaced)),
            false => Ok(()),
        }
    }
}

async fn identity(client: &Client) -> Result<Identity> {
    let (started, history) =
        tokio::join!(client.simple_query(IDENTITY), client.simple_query(HISTORY));
    let started = first_row(&started?).and_then(|row| row.get(0).map(str::to_owned));
    let history = history.ok().and_then(|messages| {
        let row = first_row(&messages)?;
        Some(History {
            cluster: row.get(0)?.to_owned(),
            timeline: u32::from_str_radix(row.get(1)?, 16).ok()?,
        })
    });
    Ok(Identity {
        started: started.unwrap_or_default(),
        history,
    })
}

fn first_row(messages: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
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

/// The task of a connection.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
