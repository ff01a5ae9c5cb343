//! A connection of its own, straight to the server, for what no pooler can carry:
//! statements that are no part of a transaction.
//!
//! Its limits are given when it is opened and not by SET, so that even where a
//! pooler stands in between after all, nobody else inherits them: the pooler
//! refuses them.

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::error::{StoreError, Unavailability};
use crate::tx::TxLimits;
use crate::url::DatabaseUrl;

#[derive(Debug)]
pub(crate) struct DirectConnection {
    client: Client,
    wire: JoinHandle<()>,
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
        let connecting = config.connect(url.tls());
        let patience = config.get_connect_timeout().copied();
        let connected = timeout(patience.unwrap_or(limits.deadline), connecting).await;
        let connected = connected.map_err(|_| StoreError::unavailable(Unavailability::Connect))?;
        let (client, wire) = connected.map_err(|source| StoreError::Unavailable {
            reason: Unavailability::Connect,
            source: Some(source),
        })?;
        let wire = tokio::spawn(async move { drop(wire.await) });
        Ok(DirectConnection { client, wire })
    }

    /// One statement, or several, each committed by itself.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.client.batch_execute(sql).await?)
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.wire.abort();
    }
}

fn options(limits: &TxLimits) -> String {
    let (statement, lock) = (limits.statement.as_millis(), limits.lock.as_millis());
    format!("-c statement_timeout={statement} -c lock_timeout={lock}")
}
