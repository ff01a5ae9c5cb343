//! The LISTEN connection: direct, outside the pool, and never needed for correctness.

use std::{sync::Arc, time::Duration};

use svc_store::{AgentId, DatabaseUrl, Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::ChangeFeed;
use crate::periodic::sleep;

const CHANNEL: &str = "svc_agents";
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Listen {
    pub store: Store,
    pub url: DatabaseUrl,
    pub changes: Arc<ChangeFeed>,
}

impl Listen {
    /// Listens until `stop`, and reconnects whenever the connection is lost or has served its time.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(ended) = stop.run_until_cancelled(self.listen()).await {
            let Err(error) = ended else { continue };
            tracing::warn!(%error, "not listening for changes: polling continues");
            if !sleep(RETRY, &stop).await {
                break;
            }
        }
        Ok(())
    }

    async fn listen(&self) -> Result<(), StoreError> {
        let mut listener = self.store.listen(&self.url, CHANNEL).await?;
        self.changes.notice_all();
        while let Some(payload) = listener.recv().await? {
            if let Ok(agent) = payload.parse() {
                self.changes.notice(AgentId(agent));
            }
        }
        Ok(())
    }
}
