//! One attempt of a transaction, on a connection from the pool.
//!
//! **Invariant:** a connection returns to the pool only after PostgreSQL has confirmed that
//! its transaction ended.
//!
//! **Danger:** the future of a transaction can stop at any await: an error leaves early, a
//! deadline expires, the caller's client disconnects and drops the future, or the closure
//! panics. If the connection then returned to the pool, its next user would run inside the
//! old transaction, with its locks and its uncommitted changes, and might commit them.
//!
//! **Why this is safe:** the connection is owned by a `Checkout`, whose `Drop` closes it.
//! Only `Tx::finish` takes it out and gives it back, and `finish` is called only after a
//! successful COMMIT, a successful ROLLBACK, or a statement outside a transaction that
//! completed. Every other path drops the `Checkout`; PostgreSQL sees the connection close and
//! rolls back. The pool replaces the connection on demand.
//!
//! `Tx` is handed to the closure of [`Store::run`](crate::Store::run) by value, because futures that borrow
//! from a closure's argument cannot be spawned. The handle and the attempt share the
//! `Checkout`. If the closure leaks its handle beyond its end, `finish` is not the last owner
//! and does not give the connection back; the last handle closes it.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use deadpool_postgres::Object;
use tokio_postgres::{
    Row,
    binary_copy::BinaryCopyInWriter,
    types::{ToSql, Type},
};

use crate::error::{StoreError, Unavailability};

/// A value and the PostgreSQL type that it is sent as.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Time limits of one attempt. PostgreSQL enforces the first three. The deadline is enforced
/// here, because a frozen server or a dead network enforces nothing.
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

/// A handle on an open transaction. Its queries are unnamed and typed, because a PgBouncer
/// in transaction mode does not keep prepared statements. Results must be of built-in types:
/// for others the driver would prepare a lookup of the type.
pub(crate) struct Tx {
    checkout: Arc<Checkout>,
}

/// A COPY in progress. Dropping it before `finish` fails its transaction.
pub(crate) struct CopyIn {
    writer: Pin<Box<BinaryCopyInWriter>>,
}

/// A connection from the pool that is closed on drop unless it was given back.
struct Checkout {
    /// `None` only after it was given back.
    connection: Option<Object>,
}

impl Tx {
    /// Opens a transaction and sets its limits in one round trip.
    pub(crate) async fn begin(connection: Object, limits: &TxLimits) -> Result<Tx, StoreError> {
        let tx = Tx::without_transaction(connection);
        tx.batch(&begin_sql(limits)).await?;
        Ok(tx)
    }

    /// The same guard for a single statement that PostgreSQL commits by itself.
    pub(crate) fn without_transaction(connection: Object) -> Tx {
        let connection = Some(connection);
        let checkout = Arc::new(Checkout { connection });
        Tx { checkout }
    }

    /// A second handle on the same transaction, for the closure of `run`.
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

    /// Returns the number of rows that the statement changed.
    pub(crate) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        Ok(self.client()?.execute_typed(sql, params).await?)
    }

    /// Starts a `COPY … FROM STDIN (FORMAT binary)` of columns of these types. The driver
    /// prepares a named statement for it and closes that at once. Both happen inside the
    /// transaction, so no other client of a pooler meets the name.
    pub(crate) async fn copy_in(&self, sql: &str, types: &[Type]) -> Result<CopyIn, StoreError> {
        let sink = self.client()?.copy_in(sql).await?;
        let writer = Box::pin(BinaryCopyInWriter::new(sink, types));
        Ok(CopyIn { writer })
    }

    /// Runs several statements without parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.client()?.batch_execute(sql).await?)
    }

    /// Releases the snapshot but keeps the locks. In READ COMMITTED a transaction holds the
    /// snapshot of its last query while the portal of that query is open, which is until the
    /// next statement. An empty SELECT is that statement, and leaves no snapshot behind.
    pub(crate) async fn release_snapshot(&self) -> Result<(), StoreError> {
        self.batch("SELECT").await
    }

    /// Commits. In a transaction that already failed, because the closure ignored an error,
    /// PostgreSQL answers COMMIT with success and rolls back. The `SELECT 1` before it fails
    /// in that state, so the caller gets an error instead of a false success.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let outcome = self.batch("SELECT 1; COMMIT").await;
        match outcome {
            Ok(()) => self.finish(),
            Err(_) => self.rollback().await,
        }
        outcome
    }

    /// Rolls back. If that fails, the connection is closed instead.
    pub(crate) async fn rollback(self) {
        if self.batch("ROLLBACK").await.is_ok() {
            self.finish();
        }
    }

    /// Gives the connection back to the pool, unless another handle still exists.
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
    /// Writes a row: one value per column.
    pub(crate) async fn write(&mut self, row: &[&(dyn ToSql + Sync)]) -> Result<(), StoreError> {
        Ok(self.writer.as_mut().write(row).await?)
    }

    /// Ends the COPY. Returns the number of rows.
    pub(crate) async fn finish(mut self) -> Result<u64, StoreError> {
        Ok(self.writer.as_mut().finish().await?)
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // `Object::take` detaches the connection from the pool; dropping it closes it.
            drop(Object::take(connection));
        }
    }
}

/// One SELECT sets all three limits, because every transaction pays for it. The limits are
/// local to the transaction, so a pooler passes none of them on.
fn begin_sql(limits: &TxLimits) -> String {
    format!(
        "BEGIN; SELECT set_config('statement_timeout', '{}', true), set_config('lock_timeout', '{}', true), \
         set_config('idle_in_transaction_session_timeout', '{}', true)",
        limits.statement.as_millis(),
        limits.lock.as_millis(),
        limits.idle.as_millis(),
    )
}
