//! One attempt of a transaction, on a connection from the pool.
//!
//! Every statement runs inside a transaction that sets its limits, a single one too. Limits of the
//! session would not survive a pooler in transaction mode, or would reach other clients of it.
//!
//! Every transaction asks for READ COMMITTED, whatever the default of the server, the database or the role is. Several
//! functions take a lock and then look again (`sample_hour_take`, the sealing of an hour, the books of an agent). They
//! must see what was committed while they waited, and with an older snapshot they would not.
//!
//! Dropping a `Tx` before its end gives its work up; `checkout.rs` says what becomes of it.
//!
//! `Tx` is handed to the closure of [`Store::run`](crate::Store::run) by value, because futures that borrow
//! from a closure's argument cannot be spawned. The handle and the attempt share the
//! `Checkout`. If the closure leaks its handle beyond its end, `finish` is not the last owner
//! and does not give the connection back; the last handle gives it up.

use std::{fmt, sync::Arc, time::Duration};

use tokio_postgres::{
    Row, SimpleQueryMessage,
    types::{FromSqlOwned, ToSql, Type},
};

use crate::pg::{checkout::Checkout, connections::Object, error::Result};

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

/// In a transaction that already failed, because the closure ignored an error, PostgreSQL answers
/// COMMIT with success and rolls back. The SELECT before it fails in that state, so the caller gets
/// an error instead of a false success. It also tells whether the transaction has written.
const COMMIT: &str = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL; COMMIT";

/// The COMMIT of a transaction that has only read, if what it read must not be lost in a failover. A commit that wrote
/// nothing does not wait for a synchronous standby, although the rows that it read may exist on this server alone. This
/// one writes a message into the WAL, after the read. The WAL is replicated in order, so a standby that has the message has
/// everything that was read. Any role may write it, and it need not be read.
const COVERED_COMMIT: &str =
    "SELECT pg_logical_emit_message(true, 'svc-ingest', '') IS NOT NULL; COMMIT";

/// What a single statement does, which decides how it is committed and given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Single {
    Read,
    /// A read that is covered by a commit of its own.
    Covered,
    Write,
}

impl Single {
    fn commit(self) -> &'static str {
        match self {
            Single::Read | Single::Write => COMMIT,
            Single::Covered => COVERED_COMMIT,
        }
    }
}

/// The result of a transaction that was committed.
#[derive(Debug)]
pub(crate) struct Completed<T> {
    pub(crate) value: T,
    /// Whether it has written something.
    pub(crate) wrote: bool,
}

impl Tx {
    /// Opens a transaction and sets its limits in one round trip.
    pub(crate) async fn begin(connection: Object, limits: &TxLimits) -> Result<Tx> {
        let tx = Tx::on(connection);
        tx.batch(&begin_sql(limits)).await?;
        Ok(tx)
    }

    /// Runs one statement as a transaction of its own, in one round trip: BEGIN with the limits, the
    /// statement and COMMIT are sent together. The driver sends them in the order in which the futures
    /// are first polled, which `biased` fixes. After an error of the statement COMMIT fails too.
    ///
    /// The limit of the statement covers its waits for locks.
    pub(crate) async fn single(
        connection: Object,
        limits: &TxLimits,
        kind: Single,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Completed<Vec<Row>>> {
        let tx = Tx::on(connection);
        if kind != Single::Read {
            tx.checkout.begin_commit();
        }
        let client = tx.client()?;
        let begin = begin_sql(&TxLimits {
            lock: limits.statement,
            ..*limits
        });
        let work = async {
            tokio::join!(
                biased;
                client.batch_execute(&begin),
                client.query_typed(sql, params),
                client.simple_query(kind.commit()),
            )
        };
        let (begun, rows, committed) = tx.checkout.answer(work).await?;
        let (value, answer) = match begun.and(rows) {
            Ok(rows) => (rows, committed),
            Err(error) => (Vec::new(), Err(error)),
        };
        let wrote = tx.end(answer).await?;
        Ok(Completed { value, wrote })
    }

    fn on(connection: Object) -> Tx {
        let checkout = Arc::new(Checkout::new(connection));
        Tx { checkout }
    }

    /// A second handle on the same transaction, for the closure of `run`.
    pub(crate) fn handle(&self) -> Tx {
        let checkout = self.checkout.clone();
        Tx { checkout }
    }

    pub(crate) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        Ok(self.client()?.query_typed(sql, params).await?)
    }

    pub(crate) async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        Ok(self.client()?.query_typed_one(sql, params).await?)
    }

    /// The first column of the only row.
    pub(crate) async fn query_value<T: FromSqlOwned>(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<T> {
        Ok(self.query_one(sql, params).await?.try_get(0)?)
    }

    pub(crate) async fn query_opt(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        Ok(self.client()?.query_typed_opt(sql, params).await?)
    }

    /// Returns the number of rows that the statement changed.
    pub(crate) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        Ok(self.client()?.execute_typed(sql, params).await?)
    }

    /// Runs the statements that a query returns.
    pub(crate) async fn execute_rows(&self, sql: &str, params: &[Param<'_>]) -> Result<()> {
        for row in self.query(sql, params).await? {
            self.batch(row.try_get(0)?).await?;
        }
        Ok(())
    }

    /// Runs several statements without parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<()> {
        Ok(self.client()?.batch_execute(sql).await?)
    }

    /// Releases the snapshot but keeps the locks. In READ COMMITTED a transaction holds the
    /// snapshot of its last query while the portal of that query is open, which is until the
    /// next statement. An empty SELECT is that statement, and leaves no snapshot behind.
    pub(crate) async fn release_snapshot(&self) -> Result<()> {
        self.batch("SELECT").await
    }

    /// Commits. Returns whether the transaction has written something.
    pub(crate) async fn commit(self) -> Result<bool> {
        self.checkout.begin_commit();
        let commit = self.client()?.simple_query(COMMIT);
        let answer = self.checkout.answer(commit).await?;
        self.end(answer).await
    }

    /// Ends the transaction after the `answer` to COMMIT. Returns whether it has written something.
    async fn end(
        self,
        answer: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
    ) -> Result<bool> {
        let trusted = self.checkout.trusted();
        match answer {
            Ok(_) => self.finish(),
            Err(_) => self.rollback().await,
        }
        let wrote = wrote(&answer?);
        trusted?;
        Ok(wrote)
    }

    /// Rolls back. If that fails, the work is given up instead.
    pub(crate) async fn rollback(self) {
        if self.batch("ROLLBACK").await.is_ok() {
            self.finish();
        }
    }

    /// Gives the connection back to the pool, unless another handle still exists.
    fn finish(self) {
        if let Some(checkout) = Arc::into_inner(self.checkout) {
            checkout.give_back();
        }
    }

    fn client(&self) -> Result<&tokio_postgres::Client> {
        self.checkout.client()
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

/// The answer to the SELECT of `COMMIT`.
fn wrote(messages: &[SimpleQueryMessage]) -> bool {
    messages.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    })
}

/// One SELECT sets everything, because every transaction pays for it. The settings are local to the
/// transaction, so a pooler passes none of them on. No statement here runs long enough to be worth
/// compiling: the planner's guesses for the views of history are high, and PostgreSQL would compile a
/// plot's query of 30 ms for six seconds. Warnings must arrive, whatever the role's settings are: one of them says that a
/// commit was not replicated.
fn begin_sql(limits: &TxLimits) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; \
         SELECT set_config('statement_timeout', '{}', true), set_config('lock_timeout', '{}', true), \
         set_config('idle_in_transaction_session_timeout', '{}', true), set_config('jit', 'off', true), \
         set_config('client_min_messages', 'warning', true)",
        limits.statement.as_millis(),
        limits.lock.as_millis(),
        limits.idle.as_millis(),
    )
}
