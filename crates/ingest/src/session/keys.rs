//! New keys that agents announced on their streams, on their way into the database, and what people ask for, on its way to agents.
//!
//! Both are part of the pass of [`Offers`](super::Offers): it stores all keys that were announced since the last one with
//! one statement, and asks with another one whether agents of this instance are to change their keys. An agent that connects
//! later learns that when its session is opened.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use svc_store::{AgentId, NextKey, Store, StoreError};
use tokio::sync::watch;
use uuid::Uuid;

use super::{SessionKey, SessionTable, StoredKey};

/// The keys of one statement, which holds a lock for each.
const BATCH: usize = 500;
/// A request may be committed after one with a later time. Each session is asked once, however often its request is read.
const OVERLAP: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Keys {
    store: Store,
    sessions: Arc<SessionTable>,
    instance: watch::Receiver<Uuid>,
    /// Requests until then are known.
    known: Option<Timestamp>,
}

impl Keys {
    pub fn new(store: Store, sessions: Arc<SessionTable>, instance: watch::Receiver<Uuid>) -> Self {
        Self {
            store,
            sessions,
            instance,
            known: None,
        }
    }

    pub async fn pass(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.store_announced().await?;
        let instance = *self.instance.borrow();
        let since = *self.known.get_or_insert(now - OVERLAP);
        let asked = self.store.agents_to_change_key(instance, since).await?;
        for (agent, at) in asked {
            self.sessions.ask_for_key(agent);
            self.known = self.known.max(Some(at - OVERLAP));
        }
        Ok(())
    }

    async fn store_announced(&self) -> Result<(), StoreError> {
        let mut announced = self.sessions.next_keys.take();
        // A key whose session has ended is announced again by the agent's next one.
        announced.retain(|next| self.sessions.has(session(next)));
        for (number, batch) in announced.chunks(BATCH).enumerate() {
            let stored = self.store.agent_keys_store(batch).await.inspect_err(|_| {
                let rest = announced.iter().skip(number * BATCH);
                rest.for_each(|next| self.sessions.next_keys.put_back(next));
            })?;
            let mut stored: HashMap<AgentId, String> = stored.into_iter().collect();
            for next in batch {
                match stored.remove(&next.agent) {
                    Some(refused) => {
                        let key = next.key;
                        let answer = StoredKey { key, refused };
                        self.sessions.key_stored(session(next), answer);
                    }
                    None => self.sessions.next_keys.put_back(next),
                }
            }
        }
        Ok(())
    }
}

fn session(next: &NextKey) -> SessionKey {
    SessionKey {
        agent: next.agent,
        epoch: next.epoch,
    }
}
