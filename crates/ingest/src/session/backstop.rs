//! What a stream relies on when it is told nothing: once a second, those that have
//! waited for longer than that look for themselves.
//!
//! One statement reads their watermarks. A stream whose report the queue no longer
//! has, although it is not committed, ends: its agent sends it again. The queue is
//! asked first, because what it has settled was committed before it was.

use std::{collections::HashMap, sync::Arc};

use svc_store::{AgentId, Store};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Ending, Sessions};
use crate::{
    config::Timing,
    queue::{Queue, Ticket},
};

#[derive(Debug)]
pub struct Backstop {
    pub sessions: Arc<Sessions>,
    pub store: Store,
    pub queue: Queue,
    pub timing: Timing,
}

impl Backstop {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(self.timing.ack_backstop);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            stop.run_until_cancelled(self.pass()).await;
        }
        Ok(())
    }

    async fn pass(&self) {
        let late = self.sessions.waiting(self.timing.ack_backstop);
        if late.is_empty() {
            return;
        }
        let tickets: Vec<Ticket> = late.iter().map(|(_, awaited)| awaited.ticket).collect();
        let gone = self.queue.gone(&tickets).await.unwrap_or_default();
        let agents: Vec<AgentId> = late.iter().map(|(session, _)| session.agent).collect();
        let marks = match self.store.watermarks(&agents).await {
            Ok(marks) => marks,
            Err(error) => {
                tracing::debug!(%error, "watermarks could not be read: the next pass will");
                return;
            }
        };
        self.sessions.acked(&marks);
        let acked: HashMap<AgentId, i64> = marks
            .iter()
            .map(|mark| (mark.agent_id, mark.acked_seq))
            .collect();
        let lost = late.iter().filter(|(session, awaited)| {
            let acked = acked.get(&session.agent);
            gone.contains(&awaited.ticket) && acked.is_some_and(|acked| *acked < awaited.last_seq)
        });
        for (session, _) in lost {
            tracing::warn!(agent.id = %session.agent, "the queue lost a report: its agent will send it again");
            session.inbox.end(Ending::Unstored);
        }
    }
}
