//! A connection outside the pool, for statements that cannot run inside a transaction.
//!
//! It should reach the server directly. Its limits are startup options and not SET commands:
//! if a pooler is in between after all, it refuses the options, and no other client can
//! inherit them. The isolation level is one of them, for the same reason as in `tx.rs`.

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_postgres::Client;

use crate::pg::{
    cancel::Canceller, connect::connect, error::Result, tx::TxLimits, url::DatabaseUrl,
};

pub(crate) struct DirectConnection {
    client: Client,
    canceller: Canceller,
    driver: JoinHandle<()>,
}

impl DirectConnection {
    pub(crate) async fn connect(url: &DatabaseUrl, limits: &TxLimits) -> Result<DirectConnection> {
        let options = options(limits);
        let connected = Box::pin(connect(url, Some(&options))).await?;
        let wire = connected.wire;
        Ok(DirectConnection {
            client: connected.client,
            canceller: connected.canceller,
            driver: tokio::spawn(async move { drop(wire.await) }),
        })
    }

    /// Runs statements that are each committed by themselves. Dropping the future cancels them.
    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        let mut running = Running(Some(self.canceller.clone()));
        let outcome = self.client.batch_execute(sql).await;
        running.0 = None;
        Ok(outcome?)
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A statement that is cancelled on drop, unless it has ended.
struct Running(Option<Canceller>);

impl Drop for Running {
    fn drop(&mut self) {
        if let (Some(canceller), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { canceller.cancel().await });
        }
    }
}

fn options(limits: &TxLimits) -> String {
    let (statement, lock) = (limits.statement.as_millis(), limits.lock.as_millis());
    // A backslash keeps the space within one option.
    format!(
        r"-c statement_timeout={statement} -c lock_timeout={lock} -c default_transaction_isolation=read\ committed"
    )
}
