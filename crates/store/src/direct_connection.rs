//! A connection outside the pool, for statements that cannot run inside a transaction.
//!
//! It should reach the server directly. Its limits are startup options and not SET commands:
//! if a pooler is in between after all, it refuses the options, and no other client can
//! inherit them.

use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::Client;

use crate::{
    error::{StoreError, Unavailability},
    tx::TxLimits,
    url::DatabaseUrl,
};

#[derive(Debug)]
pub(crate) struct DirectConnection {
    client: Client,
    driver: JoinHandle<()>,
}

impl DirectConnection {
    /// Connects, or fails within the connection timeout.
    pub(crate) async fn connect(
        url: &DatabaseUrl,
        limits: &TxLimits,
    ) -> Result<DirectConnection, StoreError> {
        let mut config = url.config().clone();
        let given = config.get_options().unwrap_or_default();
        config.options(format!("{given} {}", options(limits)));
        let limit = config.get_connect_timeout().copied();
        let connecting = config.connect(url.tls());
        let connected = timeout(limit.unwrap_or(limits.deadline), connecting).await;
        let connected = connected.map_err(|_| StoreError::unavailable(Unavailability::Connect))?;
        let (client, connection) = connected.map_err(StoreError::connect)?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(DirectConnection { client, driver })
    }

    /// Runs statements that are each committed by themselves.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(sql).await?)
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn options(limits: &TxLimits) -> String {
    let (statement, lock) = (limits.statement.as_millis(), limits.lock.as_millis());
    format!("-c statement_timeout={statement} -c lock_timeout={lock}")
}
