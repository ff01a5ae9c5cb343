//! The backstop for acknowledgements: finds commits that no hint announced and reports that the queue lost.
//!
//! Every [`ack_backstop`](Timing::ack_backstop), it reads the watermarks of all agents whose oldest
//! report has waited for longer than that, in batches. The read is covered by a commit (`Store::watermarks`), because a row that is
//! visible may be missing on a synchronous standby. A session whose report the queue no longer has, although it is not committed, ends;
//! its agent reconnects and sends the report again.
//!
//! The order matters: the queue is asked first. It drops a report only after the commit, so a report
//! that is gone from the queue and still above the watermark read *afterwards* is lost for certain.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use svc_pipeline::queue::{Queue, Ticket};
use svc_store::{AgentId, Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::{EndReason, PendingReport, Session, SessionTable, held};
use crate::{config::Timing, log_limit::LogLimit, periodic::Periodic};

static LOST: LogLimit = LogLimit::new();

#[derive(Debug)]
pub struct AckBackstop {
    pub sessions: Arc<SessionTable>,
    pub store: Store,
    pub queue: Queue,
    pub timing: Timing,
}

impl AckBackstop {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(self.timing.ack_backstop, stop);
        while periodic.tick().await {
            periodic.until_stopped(self.pass()).await;
        }
        Ok(())
    }

    async fn pass(&self) {
        let late = self.sessions.waiting(self.timing.ack_backstop);
        if late.is_empty() {
            return;
        }
        let tickets: Vec<Ticket> = late.iter().map(|(_, pending)| pending.ticket).collect();
        let gone = self.queue.gone(&tickets).await.unwrap_or_default();
        for batch in late.chunks(held::BATCH) {
            if let Err(error) = self.settle(batch, &gone).await {
                tracing::debug!(%error, "watermarks could not be read: the next pass retries");
                return;
            }
        }
    }

    async fn settle(
        &self,
        late: &[(Session, PendingReport)],
        gone: &HashSet<Ticket>,
    ) -> Result<(), StoreError> {
        let agents: Vec<AgentId> = late.iter().map(|(session, _)| session.key.agent).collect();
        let watermarks = self.store.watermarks(&agents).await?;
        self.sessions.acked(&watermarks);
        let acked: HashMap<AgentId, i64> = watermarks
            .iter()
            .map(|watermark| (watermark.agent_id, watermark.acked_seq))
            .collect();
        let lost = late.iter().filter(|(session, pending)| {
            let acked = acked.get(&session.key.agent);
            gone.contains(&pending.ticket) && acked.is_some_and(|acked| *acked < pending.last_seq)
        });
        for (session, _) in lost {
            LOST.line(|suppressed| {
                tracing::warn!(agent.id = %session.key.agent, suppressed, "the queue lost a report: its agent will send it again");
            });
            session.inbox.end(EndReason::Unstored);
        }
        Ok(())
    }
}
