//! Commit hints: over NATS, consumers in other processes tell this instance that something was committed.
//!
//! A hint only says where to look. Any client that may publish on the subject can send one, so no number in it reaches an
//! agent: the listener gathers the agents that hints name, and reads their watermarks from the database. A false hint
//! costs a row of a statement and acknowledges nothing.
//!
//! What is read is covered by a commit, as in the backstop.
//!
//! **Cost.** The first hint after a pause is confirmed at once. After that one statement confirms all hints of a quarter
//! of a second, so an instance runs at most four of them a second, however many consumers send hints. A second statement
//! is needed only where hints name dead letters.

use std::{collections::HashSet, mem::take, sync::Arc, time::Duration};

use svc_pipeline::{
    consumer::Streams,
    queue::{Committed, DeadLetter, HintSubscription, Hints},
};
use svc_store::{AgentId, Store, StoreError};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SessionTable;
use crate::periodic::sleep;

const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two confirmations.
const INTERVAL: Duration = Duration::from_millis(250);
/// The most agents in a confirmation. Further hints wait in the subscription.
const MAX_AGENTS: usize = 2000;
/// The most numbers of dead letters in a confirmation: more than a consumer's batch has. Further ones are acknowledged
/// without being named as rejected.
const MAX_REFUSED: usize = 10_000;

#[derive(Debug)]
pub struct HintListener {
    pub hints: Hints,
    pub sessions: Arc<SessionTable>,
    pub store: Store,
    /// Hints are addressed to the instance's current id.
    pub instance: watch::Receiver<Uuid>,
}

/// What hints have named since the last confirmation.
#[derive(Debug, Default)]
struct Hinted {
    agents: HashSet<AgentId>,
    refused: Vec<(AgentId, i64)>,
}

impl Hinted {
    /// Adds what concerns sessions of this instance.
    fn add(&mut self, hint: &Committed, sessions: &SessionTable) {
        let is_here = |agent: &AgentId| sessions.contains(*agent);
        let agents = hint.watermarks.iter().map(|mark| mark.agent_id);
        self.agents.extend(agents.filter(is_here));
        let letters = hint.dead_letters.iter();
        for letter in letters.filter(|letter| is_here(&letter.agent_id)) {
            let room = MAX_REFUSED.saturating_sub(self.refused.len());
            let seqs = letter.seqs.iter().take(room);
            self.refused.extend(seqs.map(|seq| (letter.agent_id, *seq)));
        }
    }

    fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.refused.is_empty()
    }

    fn has_room(&self) -> bool {
        self.agents.len() < MAX_AGENTS && self.refused.len() < MAX_REFUSED
    }
}

impl HintListener {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            let instance = *self.instance.borrow_and_update();
            match self.hints.subscribe(instance).await {
                Ok(subscription) => {
                    stop.run_until_cancelled(self.receive(subscription)).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot subscribe to commit hints: retrying");
                    sleep(RETRY, &stop).await;
                }
            }
        }
        Ok(())
    }

    /// Returns when the instance has taken another id.
    async fn receive(&mut self, mut subscription: HintSubscription) {
        let (mut hinted, mut confirm_at) = (Hinted::default(), Instant::now());
        loop {
            tokio::select! {
                biased;
                () = sleep_until(confirm_at), if !hinted.is_empty() => {
                    self.confirm(take(&mut hinted)).await;
                    confirm_at = Instant::now() + INTERVAL;
                }
                hint = subscription.next(), if hinted.has_room() => {
                    hinted.add(&hint, &self.sessions);
                }
                changed = self.instance.changed() => match changed {
                    Ok(()) => return,
                    // The lease has ended because the process stops: `run` is cancelled next.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    async fn confirm(&self, hinted: Hinted) {
        match self.confirmed(hinted).await {
            Ok(committed) => self.sessions.committed(&committed),
            Err(error) => {
                tracing::debug!(%error, "hints could not be confirmed: the backstop reads the watermarks");
            }
        }
    }

    /// What the database says about the agents and the numbers that hints have named.
    async fn confirmed(&self, hinted: Hinted) -> Result<Committed, StoreError> {
        let dead_letters = match hinted.refused.is_empty() {
            true => Vec::new(),
            false => self.store.dead_letters_confirm(&hinted.refused).await?,
        };
        let dead_letters = dead_letters.into_iter().map(|(agent_id, seq)| DeadLetter {
            agent_id,
            seqs: vec![seq],
        });
        let agents: Vec<AgentId> = hinted.agents.into_iter().collect();
        Ok(Committed {
            watermarks: self.store.watermarks(&agents).await?,
            dead_letters: dead_letters.collect(),
        })
    }
}
