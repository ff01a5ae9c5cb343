//! How the key of a client stands to the agent that it says it is; and the keys of agents, as far as this instance has learned them.
//!
//! A JWT names its agent, but anyone who has stolen it can present it over keys of their own. Such a request is refused
//! before it takes anything from others: a place in the queue of opens, a connection's place that is not evicted, or a
//! token of the agent's rate limit. So the pin has to be known first. Registrations teach it; otherwise it is looked up, for
//! all agents that wait in one query.
//!
//! Agents change their keys, on other instances too. So an entry only says that this key was the agent's: the opening of the session
//! compares again, in the database. Any other key is looked up, every time, which costs a client more than it costs the service.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_front::peer::ClientKey;
use svc_store::{AgentId, KeyQuestion, KeyStanding, Store};
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
type Answer = Result<Option<KeyStanding>, OpenError>;

/// The pins that are known, and the handle through which streams ask for others.
#[derive(Debug)]
pub struct Pins {
    known: Mutex<HashMap<AgentId, ClientKey>>,
    lookups: Batched<KeyQuestion, Answer>,
}

/// The background part that looks pins up.
#[derive(Debug)]
pub struct PinPart {
    pins: Arc<Pins>,
    lookups: Batches<KeyQuestion, Answer>,
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

    /// How this client's key stands to `agent`. `None`: there is no such agent.
    pub async fn of(&self, agent: AgentId, key: ClientKey, address: IpAddr) -> Answer {
        if lock(&self.known).get(&agent) == Some(&key) {
            return Ok(Some(KeyStanding::Present));
        }
        let key = key.0;
        let question = KeyQuestion {
            agent,
            key,
            address,
        };
        match timeout(OPEN_VALIDITY, self.lookups.ask(question)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Unanswered::Full)) => Err(OpenError::Overloaded),
            Ok(Err(Unanswered::Ended)) | Err(_) => Err(OpenError::Unavailable),
        }
    }

    /// The key was retired elsewhere.
    pub fn forget(&self, agent: AgentId) {
        lock(&self.known).remove(&agent);
    }

    pub fn learn(&self, agent: AgentId, key: ClientKey) {
        let mut known = lock(&self.known);
        if known.len() >= MAX_PINS
            && !known.contains_key(&agent)
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

    async fn pass(&self, batch: Batch<KeyQuestion, Answer>) {
        let asked: Vec<KeyQuestion> = batch.questions().copied().collect();
        match self.store.agents_keys(&asked).await {
            Ok(found) => {
                for (asked, standing) in asked.iter().zip(&found) {
                    if *standing == Some(KeyStanding::Present) {
                        self.pins.learn(asked.agent, ClientKey(asked.key));
                    }
                }
                batch.answer(found.into_iter().map(Ok));
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
