//! The LISTEN connection: direct, outside the pool, and never needed for correctness.

use std::{sync::Arc, time::Duration};

use svc_store::{AgentId, DatabaseUrl, Listener, StoreError};
use tokio_util::sync::CancellationToken;

use super::Watch;

const CHANNEL: &str = "svc_agents";
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Listen {
    pub url: DatabaseUrl,
    pub watch: Arc<Watch>,
}

impl Listen {
    /// Listens until `stop`; connects anew whenever the connection is lost.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(ended) = stop.run_until_cancelled(self.listen()).await {
            if let Err(error) = ended {
                tracing::warn!(%error, "not listening for changes: polling goes on");
            }
            if stop
                .run_until_cancelled(tokio::time::sleep(RETRY))
                .await
                .is_none()
            {
                break;
            }
        }
        Ok(())
    }

    async fn listen(&self) -> Result<(), StoreError> {
        let mut listener = Listener::connect(&self.url, CHANNEL).await?;
        self.watch.notice_all();
        loop {
            if let Ok(agent) = listener.recv().await?.parse() {
                self.watch.notice(AgentId(agent));
            }
        }
    }
}
