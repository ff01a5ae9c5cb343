//! The connection pools, and named statements and transactions with retries.
//!
//! **Bulkheads.** There are four pools, one per [`Bulkhead`]. Work of one kind can exhaust
//! only its own pool: when appends of samples stall on a slow disk, agents can still be
//! authenticated, and revocations are still noticed. A call waits a bounded time for a
//! connection and then fails as unavailable, so a stalled pool does not collect an unbounded
//! queue of callers.
//!
//! **Retries.** One call makes up to [`TRIES`] attempts, with a growing random delay between
//! them. Each attempt has its own connection and its own deadline. An attempt is repeated only
//! if it is certain that it changed nothing:
//!
//! - After a serialization failure or a deadlock PostgreSQL has rolled the transaction back.
//! - A read-only server has refused the write. After a failover another server may take it, so all
//!   connections are discarded first (see `servers.rs`).
//! - If the connection turns out to be dead at BEGIN or during a single read, nothing was
//!   written. This happens after a server restart: the pool cannot see that its idle
//!   connections died, and the first use finds out.
//! - If the connection is lost later, for example while COMMIT is under way, the outcome is
//!   unknown. The error goes to the caller, which must be able to repeat the call safely.
//!   Watermarks, epochs and leases are designed for that.
//! - If a commit has stopped waiting for a synchronous standby, the outcome is unknown as well: it
//!   is visible here, and a failover may undo it.
//!
//! **Limits.** PostgreSQL limits every statement, its waits for locks and its idle time (`tx.rs`). The
//! deadline of a call is enforced here. Whatever drops the future of a call, the deadline too, has
//! its statement ended on the server, unless it is being committed (`checkout.rs`). Other calls are not affected.

use std::{sync::Arc, time::Duration};

use deadpool::{
    Runtime,
    managed::{PoolError, QueueMode, TimeoutType},
};
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Row, types::FromSqlOwned};

pub use crate::pg::bulkhead::Bulkhead;
use crate::{
    pg::{
        connections::{Connections, Object, Pool},
        error::{Result, StoreError, Unavailability},
        listen::Listener,
        metrics::{Kind, Metrics, StateCollector},
        servers::Servers,
        tx::{Completed, Param, Single, Tx, TxLimits},
        url::DatabaseUrl,
    },
    values::migration::Migration,
};

const TRIES: u32 = 5;

#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Connections of all bulkheads together. Each bulkhead has at least one.
    pub pool_size: usize,
    /// How long a call waits for a free connection.
    pub acquire: Duration,
    /// Migrations after this program's own: a test invents the next version.
    pub later_migrations: &'static [Migration],
    pub(crate) limits: TxLimits,
}

impl StoreOptions {
    /// Short limits for the service, whose clients retry.
    pub fn for_service(pool_size: usize) -> StoreOptions {
        StoreOptions {
            pool_size,
            acquire: Duration::from_secs(2),
            later_migrations: &[],
            limits: TxLimits::default(),
        }
    }

    /// Longer limits for the admin commands. A person waits longer than an agent, and one
    /// decision may concern thousands of agents.
    pub fn for_commands() -> StoreOptions {
        let limits = TxLimits {
            statement: Duration::from_secs(60),
            lock: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            deadline: Duration::from_secs(75),
        };
        StoreOptions {
            limits,
            ..StoreOptions::for_service(Bulkhead::ALL.len())
        }
    }
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions::for_service(16)
    }
}

/// A handle on the database. Clones share the pools.
#[derive(Debug, Clone)]
pub struct Store {
    pools: Arc<[Pool; 4]>,
    servers: Arc<Servers>,
    metrics: Arc<Metrics>,
    options: Arc<StoreOptions>,
}

impl Store {
    /// Opens no connection yet; the first use does.
    pub fn new(url: DatabaseUrl, options: StoreOptions) -> Result<Store> {
        let servers = Arc::new(Servers::new());
        let pool = |bulkhead: Bulkhead| build_pool(&url, &servers, &options, bulkhead);
        let [ingest, auth, watch, maintenance] = Bulkhead::ALL.map(pool);
        Ok(Store {
            pools: Arc::new([ingest?, auth?, watch?, maintenance?]),
            servers,
            metrics: Arc::new(Metrics::new()),
            options: Arc::new(options),
        })
    }

    /// Adds the database's metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        let state = StateCollector {
            pools: self.pools.clone(),
            metrics: self.metrics.clone(),
        };
        registry.register_collector(Box::new(state));
    }

    /// The number of connections of this bulkhead.
    pub fn connections(&self, bulkhead: Bulkhead) -> usize {
        bulkhead.share(self.options.pool_size)
    }

    pub(crate) fn later_migrations(&self) -> &'static [Migration] {
        self.options.later_migrations
    }

    /// When a call last succeeded, in any bulkhead.
    pub fn last_success(&self) -> Option<Instant> {
        self.metrics.last_success()
    }

    /// Since when calls have failed because the database is unavailable, in all bulkheads.
    pub fn away_since(&self) -> Option<Instant> {
        self.metrics.away_since()
    }

    /// Since when writes have failed, while reads may succeed.
    pub fn unwritable_since(&self) -> Option<Instant> {
        self.metrics.unwritable_since()
    }

    /// Listens on `channel` until the connections of the pools are discarded, for example after a
    /// failover. `url` reaches the same database directly.
    pub async fn listen(&self, url: &DatabaseUrl, channel: &str) -> Result<Listener> {
        Listener::connect(url, channel, self.servers.discards()).await
    }

    pub async fn ping(&self) -> Result<()> {
        let sql = "-- ping\nSELECT 1";
        self.read("ping", Bulkhead::Watch, sql, &[]).await?;
        Ok(())
    }

    /// Runs `f` in a transaction and commits it: `store.run("host_retire", Bulkhead::Auth,
    /// async |tx| { .. })`. `f` may run several times, so it must have no effect outside the
    /// transaction. After `Unavailable` the commit may or may not have happened.
    pub(crate) async fn run<T, F, Fut>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        f: F,
    ) -> Result<T>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        self.run_within(name, bulkhead, &self.options.limits, f)
            .await
    }

    /// Runs one statement in a transaction, for the first column of its only row.
    pub(crate) async fn run_value<T: FromSqlOwned>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<T> {
        self.run(name, bulkhead, async |tx| tx.query_value(sql, params).await)
            .await
    }

    /// Like `run`, with other limits.
    pub(crate) async fn run_within<T, F, Fut>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        limits: &TxLimits,
        f: F,
    ) -> Result<T>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let attempt = || self.attempt(bulkhead, limits, &f);
        self.retrying(name, Kind::Write, limits.deadline, attempt)
            .await
    }

    /// Runs a single statement that only reads, in one round trip. It is retried after a lost
    /// connection.
    pub(crate) async fn read(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let failure = Failure::before_any_change;
        let attempt = || self.single(bulkhead, Single::Read, sql, params, failure);
        let deadline = self.options.limits.deadline;
        self.retrying(name, Kind::Read, deadline, attempt).await
    }

    /// Runs a single statement that writes and is committed by itself, in one round trip. It
    /// is retried after a deadlock, but not after a lost connection, because it may have been
    /// committed.
    pub(crate) async fn call(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let attempt = || self.single(bulkhead, Single::Write, sql, params, Failure::from);
        let deadline = self.options.limits.deadline;
        self.retrying(name, Kind::Write, deadline, attempt).await
    }

    /// Runs a single statement that only reads, in one round trip, and commits in a way that covers what it
    /// read: where commits wait for a standby, the standby has it. Every number that is read from the database and
    /// then sent to an agent goes through here.
    pub(crate) async fn read_covered(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let attempt = || self.single(bulkhead, Single::Covered, sql, params, Failure::from);
        let deadline = self.options.limits.deadline;
        self.retrying(name, Kind::Write, deadline, attempt).await
    }

    async fn retrying<T, Fut>(
        &self,
        name: &'static str,
        kind: Kind,
        deadline: Duration,
        attempt: impl Fn() -> Fut,
    ) -> Result<T>
    where
        Fut: Future<Output = Result<Completed<T>, Failure>>,
    {
        let mut meter = self.metrics.start(name, kind);
        let mut tries = 1;
        loop {
            let outcome = within(deadline, attempt()).await;
            if let Err(failure) = &outcome
                && failure.error.is_read_only()
            {
                self.servers.discard("the server is read-only");
            }
            match outcome {
                Err(failure) if failure.retry && tries < TRIES => meter.retry(),
                outcome => return meter.finish(outcome.map_err(|failure| failure.error)),
            }
            sleep(backoff(tries)).await;
            tries += 1;
        }
    }

    async fn attempt<T, F, Fut>(
        &self,
        bulkhead: Bulkhead,
        limits: &TxLimits,
        f: &F,
    ) -> Result<Completed<T>, Failure>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let tx = Tx::begin(self.acquire(bulkhead).await?, limits).await;
        let tx = tx.map_err(Failure::before_any_change)?;
        match f(tx.handle()).await {
            Ok(value) => {
                let wrote = tx.commit().await?;
                Ok(Completed { value, wrote })
            }
            Err(error) => {
                tx.rollback().await;
                Err(error.into())
            }
        }
    }

    async fn single(
        &self,
        bulkhead: Bulkhead,
        kind: Single,
        sql: &str,
        params: &[Param<'_>],
        failure: fn(StoreError) -> Failure,
    ) -> Result<Completed<Vec<Row>>, Failure> {
        let connection = self.acquire(bulkhead).await?;
        let rows = Tx::single(connection, &self.options.limits, kind, sql, params);
        rows.await.map_err(failure)
    }

    async fn acquire(&self, bulkhead: Bulkhead) -> Result<Object> {
        let pool = &self.pools[bulkhead as usize];
        pool.get().await.map_err(acquire_error)
    }
}

/// Why an attempt failed, and whether it is repeated.
struct Failure {
    error: StoreError,
    retry: bool,
}

impl Failure {
    /// Nothing was changed yet, so an attempt on a lost connection is repeated.
    fn before_any_change(error: StoreError) -> Failure {
        let retry = error.is_connection_lost();
        Failure { error, retry }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let retry = error.is_conflict() || error.is_read_only();
        Failure { error, retry }
    }
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| StoreError::unavailable(Unavailability::Deadline);
    timeout(deadline, work).await.map_err(late)?
}

/// A random delay of up to 10, 20, 40 and 80 ms (full jitter).
fn backoff(tries: u32) -> Duration {
    Duration::from_millis(10 << tries.min(4)).mul_f64(rand::random_range(0.0..0.5))
}

fn build_pool(
    url: &DatabaseUrl,
    servers: &Arc<Servers>,
    options: &StoreOptions,
    bulkhead: Bulkhead,
) -> Result<Pool> {
    let (url, servers) = (url.clone(), servers.clone());
    Pool::builder(Connections { url, servers })
        .max_size(bulkhead.share(options.pool_size))
        // The connection that was used last has its plans and pages in the processor's caches.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(options.acquire))
        .build()
        .map_err(|_| StoreError::unavailable(Unavailability::Connect))
}

fn acquire_error(error: PoolError<StoreError>) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => StoreError::unavailable(Unavailability::PoolBusy),
        PoolError::Backend(error) => error,
        _ => StoreError::unavailable(Unavailability::Connect),
    }
}

#[cfg(test)]
mod tests;
