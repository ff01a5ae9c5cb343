//! The way to the database: three small pools and the named transaction.
//!
//! Work of different kinds has separate connections (bulkheads), so that a
//! stalled metrics table cannot keep a revocation from being seen. Every call
//! is bounded by a deadline of our own; what a deadline or a cancellation
//! interrupts loses its connection, never its neighbours'.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Row;

use crate::error::{StoreError, Unavailability};
use crate::metrics::{Metrics, StateCollector};
use crate::tx::{Param, Tx, TxLimits};
use crate::url::DatabaseUrl;

const TRIES: u32 = 5;

#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Connections in all; each bulkhead has at least one of them.
    pub pool_size: usize,
    /// How long to wait for a connection of the pool to come free.
    pub acquire: Duration,
    pub(crate) limits: TxLimits,
}

impl StoreOptions {
    /// For the service, whose clients retry: short limits.
    pub fn for_service(pool_size: usize) -> StoreOptions {
        StoreOptions {
            pool_size,
            acquire: Duration::from_secs(2),
            limits: TxLimits::default(),
        }
    }

    /// For the admin commands. A person waits longer than an agent, and one decision may
    /// concern thousands of agents.
    pub fn for_commands() -> StoreOptions {
        let limits = TxLimits {
            statement: Duration::from_secs(60),
            lock: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            deadline: Duration::from_secs(75),
        };
        StoreOptions {
            limits,
            ..StoreOptions::for_service(3)
        }
    }
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions::for_service(16)
    }
}

/// The kinds of work that must not starve each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bulkhead {
    /// Metrics and whatever else comes in bulk.
    Ingest,
    /// Registrations, session opens, decisions.
    Auth,
    /// Leases, sweeps, and looking for what changed.
    Watch,
}

impl Bulkhead {
    pub(crate) const ALL: [Bulkhead; 3] = [Bulkhead::Ingest, Bulkhead::Auth, Bulkhead::Watch];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bulkhead::Ingest => "ingest",
            Bulkhead::Auth => "auth",
            Bulkhead::Watch => "watch",
        }
    }

    /// Half, five and three sixteenths of `total`.
    pub(crate) fn share(self, total: usize) -> usize {
        let auth = (total * 5 / 16).max(1);
        let watch = (total * 3 / 16).max(1);
        match self {
            Bulkhead::Ingest => total.saturating_sub(auth + watch).max(1),
            Bulkhead::Auth => auth,
            Bulkhead::Watch => watch,
        }
    }
}

/// A handle on the database; clones share the pools.
#[derive(Debug, Clone)]
pub struct Store {
    pools: Arc<[Pool; 3]>,
    metrics: Arc<Metrics>,
    options: Arc<StoreOptions>,
}

impl Store {
    /// Opens no connection yet: the first use does.
    pub fn new(url: DatabaseUrl, options: StoreOptions) -> Result<Store, StoreError> {
        let pool = |bulkhead: Bulkhead| build_pool(&url, &options, bulkhead);
        let [ingest, auth, watch] = Bulkhead::ALL.map(pool);
        Ok(Store {
            pools: Arc::new([ingest?, auth?, watch?]),
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

    /// How many connections work of this kind has.
    pub fn connections(&self, bulkhead: Bulkhead) -> usize {
        bulkhead.share(self.options.pool_size)
    }

    /// When the database last did what it was asked, through any bulkhead.
    pub fn last_success(&self) -> Option<Instant> {
        self.metrics.last_success()
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        let sql = "-- ping\nSELECT 1";
        self.read("ping", Bulkhead::Watch, sql, &[]).await?;
        Ok(())
    }

    /// Runs `f` in a transaction and commits it: `store.run("host_retire",
    /// Bulkhead::Auth, async |tx| { .. })`. Serialization failures and
    /// deadlocks start over with a fresh transaction, so `f` may run several
    /// times and must do nothing that cannot be repeated. After `Unavailable`
    /// a commit may or may not have happened.
    pub(crate) async fn run<T, F, Fut>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        f: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        self.run_within(name, bulkhead, &self.options.limits, f)
            .await
    }

    /// `run` under limits of its own.
    pub(crate) async fn run_within<T, F, Fut>(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        limits: &TxLimits,
        f: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        let attempt = || self.attempt(bulkhead, limits, &f);
        self.retrying(name, limits.deadline, attempt).await
    }

    /// A single statement that only reads, in one round trip: no BEGIN, and so
    /// no limits but our own deadline. A lost connection starts it over.
    pub(crate) async fn read(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let attempt = || self.read_once(bulkhead, sql, params);
        let deadline = self.options.limits.deadline;
        self.retrying(name, deadline, attempt).await
    }

    /// A single statement that writes, committed by itself in one round trip. A
    /// deadlock starts it over; a lost connection does not, because it may have
    /// been committed.
    pub(crate) async fn call(
        &self,
        name: &'static str,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let attempt = || self.call_once(bulkhead, sql, params);
        let deadline = self.options.limits.deadline;
        self.retrying(name, deadline, attempt).await
    }

    async fn retrying<T, Fut>(
        &self,
        name: &'static str,
        deadline: Duration,
        attempt: impl Fn() -> Fut,
    ) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<T, Failure>>,
    {
        let mut meter = self.metrics.start(name);
        let mut tries = 1;
        loop {
            match within(deadline, attempt()).await {
                Err(failure) if failure.again && tries < TRIES => meter.retry(),
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
    ) -> Result<T, Failure>
    where
        F: Fn(Tx) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        let tx = Tx::begin(self.acquire(bulkhead).await?, limits).await;
        let tx = tx.map_err(Failure::harmless)?;
        match f(tx.handle()).await {
            Ok(value) => Ok(tx.commit().await.map(|()| value)?),
            Err(error) => {
                tx.rollback().await;
                Err(error.into())
            }
        }
    }

    async fn read_once(
        &self,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let tx = Tx::bare(self.acquire(bulkhead).await?);
        let rows = tx.query(sql, params).await;
        let rows = rows.map_err(Failure::harmless)?;
        tx.finish();
        Ok(rows)
    }

    async fn call_once(
        &self,
        bulkhead: Bulkhead,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let tx = Tx::bare(self.acquire(bulkhead).await?);
        let rows = tx.query(sql, params).await?;
        tx.finish();
        Ok(rows)
    }

    async fn acquire(&self, bulkhead: Bulkhead) -> Result<Object, StoreError> {
        let pool = &self.pools[bulkhead as usize];
        pool.get().await.map_err(acquire_error)
    }
}

/// Why a try failed, and whether another one may help.
struct Failure {
    error: StoreError,
    again: bool,
}

impl Failure {
    /// Nothing was changed yet, so a connection that had died in the pool (the
    /// server restarted, or ended idle sessions) costs a try and not the call.
    fn harmless(error: StoreError) -> Failure {
        let again = error.is_connection_lost();
        Failure { error, again }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let again = error.is_conflict();
        Failure { error, again }
    }
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| StoreError::unavailable(Unavailability::Deadline);
    timeout(deadline, work).await.map_err(late)?
}

/// Full jitter over 10, 20, 40 and 80 ms.
fn backoff(tries: u32) -> Duration {
    Duration::from_millis(10 << tries.min(4)).mul_f64(rand::random_range(0.0..0.5))
}

fn build_pool(
    url: &DatabaseUrl,
    options: &StoreOptions,
    bulkhead: Bulkhead,
) -> Result<Pool, StoreError> {
    let recycling_method = RecyclingMethod::Fast;
    let manager = ManagerConfig { recycling_method };
    let manager = Manager::from_config(url.config().clone(), url.tls(), manager);
    Pool::builder(manager)
        .max_size(bulkhead.share(options.pool_size))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(options.acquire))
        .create_timeout(url.config().get_connect_timeout().copied())
        .recycle_timeout(Some(options.acquire))
        .build()
        .map_err(|_| StoreError::unavailable(Unavailability::Connect))
}

fn acquire_error(error: PoolError) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => StoreError::unavailable(Unavailability::PoolBusy),
        PoolError::Backend(source) => StoreError::Unavailable {
            reason: Unavailability::Connect,
            source: Some(source),
        },
        _ => StoreError::unavailable(Unavailability::Connect),
    }
}

#[cfg(test)]
mod tests;
