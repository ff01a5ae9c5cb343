//! The client keys that agents are pinned to, as far as this instance has learned them.
//!
//! A JWT names its agent, but anyone who has stolen it can present it over keys of their own. Such a request is refused
//! before it takes anything from others: a place in the queue of opens, a connection's place that is not evicted, or a
//! token of the agent's rate limit. So the pin has to be known first. Registrations teach it; otherwise it is looked up, for
//! all agents that wait in one query.
//!
//! A pin never changes, so an entry is never wrong. An entry that is missing costs one lookup.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_front::peer::ClientKey;
use svc_store::{AgentId, Store};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{OPEN_VALIDITY, OpenError};
use crate::{
    batched::{Batch, Batched, Batches, Unanswered, batched},
    error_chain::chain,
    log_limit::LogLimit,
    periodic::sleep_until,
    sync::lock,
};

/// How many pins are remembered; an arbitrary one makes room for the next.
const MAX_PINS: usize = 200_000;
const BATCH: usize = 512;
/// Between batches, as for opens: a fleet that fails over costs a few dozen statements.
const PAUSE: Duration = Duration::from_millis(100);
/// Lookups that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;

static FAILED: LogLimit = LogLimit::new();

/// `None`: there is no such agent.
type Answer = Result<Option<ClientKey>, OpenError>;

/// The pins that are known, and the handle through which streams ask for others.
#[derive(Debug)]
pub struct Pins {
    known: Mutex<HashMap<AgentId, ClientKey>>,
    lookups: Batched<AgentId, Answer>,
}

/// The background part that looks pins up.
#[derive(Debug)]
pub struct PinPart {
    pins: Arc<Pins>,
    lookups: Batches<AgentId, Answer>,
    store: Store,
}

impl Pins {
    pub fn new(store: Store) -> (Arc<Self>, PinPart) {
        let (handle, lookups) = batched(QUEUE);
        let pins = Arc::new(Self {
            known: Mutex::default(),
            lookups: handle,
        });
        let part = PinPart {
            pins: pins.clone(),
            lookups,
            store,
        };
        (pins, part)
    }

    /// The key that `agent` is pinned to. `None`: there is no such agent.
    pub async fn of(&self, agent: AgentId) -> Answer {
        if let Some(key) = self.known(agent) {
            return Ok(Some(key));
        }
        match timeout(OPEN_VALIDITY, self.lookups.ask(agent)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Unanswered::Full)) => Err(OpenError::Overloaded),
            Ok(Err(Unanswered::Ended)) | Err(_) => Err(OpenError::Unavailable),
        }
    }

    fn known(&self, agent: AgentId) -> Option<ClientKey> {
        lock(&self.known).get(&agent).copied()
    }

    pub fn learn(&self, agent: AgentId, key: ClientKey) {
        let mut known = lock(&self.known);
        if known.len() >= MAX_PINS
            && let Some(any) = known.keys().next().copied()
        {
            known.remove(&any);
        }
        known.insert(agent, key);
    }
}

impl PinPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = self.lookups.next(BATCH, &stop).await {
            let sent = Instant::now();
            self.pass(batch).await;
            if !sleep_until(sent + PAUSE, &stop).await {
                break;
            }
        }
        Ok(())
    }

    async fn pass(&self, batch: Batch<AgentId, Answer>) {
        let agents: Vec<AgentId> = batch.questions().copied().collect();
        match self.store.agents_keys(&agents).await {
            Ok(found) => {
                let found = found
                    .into_iter()
                    .map(|(agent, key)| (agent, ClientKey(key)));
                let found: HashMap<AgentId, ClientKey> = found.collect();
                found
                    .iter()
                    .for_each(|(agent, key)| self.pins.learn(*agent, *key));
                batch.answer(agents.iter().map(|agent| Ok(found.get(agent).copied())));
            }
            Err(error) => {
                let (reason, streams) = (chain(&error), batch.count());
                FAILED.line(|suppressed| {
                    tracing::warn!(
                        reason,
                        streams,
                        suppressed,
                        "the keys of agents could not be read"
                    );
                });
                batch.answer_all(|| match error.is_unavailable() {
                    true => Err(OpenError::Unavailable),
                    false => Err(OpenError::Failed),
                });
            }
        }
    }
}
