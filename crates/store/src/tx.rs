//! A transaction on a pooled connection.
//!
//! The invariant: a connection returns to the pool only after PostgreSQL has
//! confirmed the end of its transaction. In every other case (an error on the
//! way, a deadline, a dropped future, a panic) `Drop` closes it instead, so
//! nobody ever inherits somebody else's open transaction.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use crate::error::{StoreError, Unavailability};

/// A value and the type that it is sent as.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How long PostgreSQL, and how long we ourselves, let one try go on. Ours is
/// there because a frozen server enforces nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxLimits {
    pub(crate) statement: Duration,
    pub(crate) lock: Duration,
    pub(crate) idle: Duration,
    pub(crate) deadline: Duration,
}

impl Default for TxLimits {
    fn default() -> TxLimits {
        TxLimits {
            statement: Duration::from_secs(5),
            lock: Duration::from_secs(2),
            idle: Duration::from_secs(10),
            deadline: Duration::from_secs(8),
        }
    }
}

/// A handle on an open transaction, given away by value because a closure that
/// borrowed it would make futures that cannot be spawned. Its calls never name a
/// prepared statement. Results must be of built-in types: for others the driver
/// would prepare a look-up.
pub(crate) struct Tx {
    checkout: Arc<Checkout>,
}

/// Rows on their way into a table. Dropped before `finish`, it fails the
/// transaction that it is a part of.
pub(crate) struct CopyIn {
    writer: Pin<Box<BinaryCopyInWriter>>,
}

/// A connection out of the pool, closed when dropped unless it was given back.
struct Checkout {
    /// `None` only once it has gone back.
    connection: Option<Object>,
}

impl Tx {
    /// Opens the transaction and sets its limits, in one round trip.
    pub(crate) async fn begin(connection: Object, limits: &TxLimits) -> Result<Tx, StoreError> {
        let tx = Tx::bare(connection);
        tx.batch(&begin_sql(limits)).await?;
        Ok(tx)
    }

    /// The same guard without a transaction, for a single statement.
    pub(crate) fn bare(connection: Object) -> Tx {
        let connection = Some(connection);
        let checkout = Arc::new(Checkout { connection });
        Tx { checkout }
    }

    /// What the closure of `run` gets. Where it outlives the transaction, the
    /// connection does not return to the pool.
    pub(crate) fn handle(&self) -> Tx {
        let checkout = self.checkout.clone();
        Tx { checkout }
    }

    pub(crate) async fn query(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        Ok(self.client()?.query_typed(sql, params).await?)
    }

    pub(crate) async fn query_one(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Row, StoreError> {
        Ok(self.client()?.query_typed_one(sql, params).await?)
    }

    pub(crate) async fn query_opt(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.client()?.query_typed_opt(sql, params).await?)
    }

    /// The number of rows that the statement touched.
    pub(crate) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        Ok(self.client()?.execute_typed(sql, params).await?)
    }

    /// A `COPY … FROM STDIN (FORMAT binary)` of columns of these types. The driver
    /// names a statement for it and closes it again at once, both inside the
    /// transaction, so a pooler hands it to nobody else.
    pub(crate) async fn copy_in(&self, sql: &str, types: &[Type]) -> Result<CopyIn, StoreError> {
        let sink = self.client()?.copy_in(sql).await?;
        let writer = Box::pin(BinaryCopyInWriter::new(sink, types));
        Ok(CopyIn { writer })
    }

    /// Several statements at once, without parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.client()?.batch_execute(sql).await?)
    }

    /// Keeps the locks and lets go of the snapshot, which the last query holds for as
    /// long as its portal is open: until the next one.
    pub(crate) async fn release_snapshot(&self) -> Result<(), StoreError> {
        self.batch("SELECT").await
    }

    /// PostgreSQL answers COMMIT in a failed transaction with success and rolls
    /// back. The SELECT before it fails there, so a swallowed error cannot pass
    /// for a commit.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let outcome = self.batch("SELECT 1; COMMIT").await;
        match outcome {
            Ok(()) => self.finish(),
            Err(_) => self.rollback().await,
        }
        outcome
    }

    /// Best effort: where it fails, the connection is closed.
    pub(crate) async fn rollback(self) {
        if self.batch("ROLLBACK").await.is_ok() {
            self.finish();
        }
    }

    /// Hands the connection back to the pool.
    pub(crate) fn finish(self) {
        if let Some(mut checkout) = Arc::into_inner(self.checkout) {
            checkout.connection.take();
        }
    }

    fn client(&self) -> Result<&tokio_postgres::Client, StoreError> {
        let connection = self.checkout.connection.as_ref();
        let lost = || StoreError::unavailable(Unavailability::ConnectionLost);
        connection.map(|object| &***object).ok_or_else(lost)
    }
}

impl CopyIn {
    /// A value for each column.
    pub(crate) async fn write(&mut self, row: &[&(dyn ToSql + Sync)]) -> Result<(), StoreError> {
        Ok(self.writer.as_mut().write(row).await?)
    }

    /// The number of rows that were taken.
    pub(crate) async fn finish(mut self) -> Result<u64, StoreError> {
        Ok(self.writer.as_mut().finish().await?)
    }
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}

/// One statement sets all three limits: what every transaction does is worth keeping short.
fn begin_sql(limits: &TxLimits) -> String {
    format!(
        "BEGIN; SELECT set_config('statement_timeout', '{}', true), set_config('lock_timeout', '{}', true), \
         set_config('idle_in_transaction_session_timeout', '{}', true)",
        limits.statement.as_millis(),
        limits.lock.as_millis(),
        limits.idle.as_millis(),
    )
}
