//! Newcomers: registrations of unknown keys with valid tokens, which come by the thousand when a fleet is rolled
//! out. They are registered in batches, one call of the database for each.
//!
//! A batch registers those whose machine is unknown too. Whoever else is among them (a machine with an agent, two
//! calls with one key, the last use of a token) is left to a transaction of its own, as every other registration.
//! If the database refuses a batch for what is in it, all of the batch are left to their own transactions, so that
//! only the one at fault is refused.
//!
//! Newcomers need no permit: all of an instance use one connection. How long they wait is bounded like the wait for a
//! permit; a newcomer that waits longer gets a retry delay.

use std::{sync::Arc, time::Duration};

use svc_store::{Admitted, Newcomer, Store, StoreError};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{RegisterError, RegisteredAgent, Registration, schedule::Schedule};
use crate::{
    batched::{Batch, Batched, Batches, batched},
    error_chain::chain,
};

/// A batch takes a few dozen milliseconds, and a longer one would delay its first newcomer.
const BATCH: usize = 128;
/// Newcomers that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;
/// How long a newcomer waits: below the deadlines of clients, and long enough for a crowd of several thousand.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The registered agent. `None`: it needs a transaction of its own.
type Answer = Result<Option<RegisteredAgent>, RegisterError>;

/// The handle through which newcomers are registered.
#[derive(Debug)]
pub(super) struct Newcomers {
    batched: Batched<Registration, Answer>,
    schedule: Arc<Schedule>,
}

/// The background part that registers them.
#[derive(Debug)]
pub struct NewcomerPart {
    batches: Batches<Registration, Answer>,
    store: Store,
    schedule: Arc<Schedule>,
}

impl Newcomers {
    pub(super) fn new(store: Store) -> (Self, NewcomerPart) {
        let (batched, batches) = batched(QUEUE, BATCH);
        let schedule = Arc::new(Schedule::new(1));
        let part = NewcomerPart {
            batches,
            store,
            schedule: schedule.clone(),
        };
        (Self { batched, schedule }, part)
    }

    pub(super) async fn register(&self, wanted: &Registration) -> Answer {
        match timeout(MAX_WAIT, self.batched.ask(wanted.clone())).await {
            Ok(answer) => answer?,
            Err(_) => Err(RegisterError::RateLimited {
                retry: self.schedule.retry_delay(Instant::now()),
            }),
        }
    }
}

impl NewcomerPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = self.batches.next(&stop).await {
            let began = Instant::now();
            let newcomers = u32::try_from(batch.count()).unwrap_or(u32::MAX);
            self.pass(batch).await;
            self.schedule.record(began.elapsed() / newcomers.max(1));
        }
        Ok(())
    }

    async fn pass(&self, batch: Batch<Registration, Answer>) {
        match self.admit(&batch).await {
            Ok(found) => {
                let registered: Vec<Option<RegisteredAgent>> =
                    found.into_iter().map(|one| one.map(Into::into)).collect();
                for (wanted, registered) in batch.questions().zip(&registered) {
                    if let Some(registered) = registered {
                        registered.log(wanted.key, &wanted.facts);
                    }
                }
                batch.answer(registered.into_iter().map(Ok));
            }
            Err(error) => {
                let (reason, registrations) = (chain(&error), batch.count());
                tracing::warn!(reason, registrations, "a batch of new agents failed");
                batch.answer_all(|| match error.is_unavailable() {
                    true => Err(RegisterError::Unavailable),
                    false => Ok(None),
                });
            }
        }
    }

    async fn admit(
        &self,
        batch: &Batch<Registration, Answer>,
    ) -> Result<Vec<Option<Admitted>>, StoreError> {
        // A registration without a token is no newcomer; the empty hash is no token's.
        let newcomers = batch.questions().map(|wanted| Newcomer {
            key: &wanted.key.0,
            token: wanted.token.as_ref().map_or(&[0; 32], |token| &token.0),
            facts: &wanted.facts,
            agent: &wanted.agent,
        });
        let newcomers: Vec<Newcomer<'_>> = newcomers.collect();
        self.store.registrations_admit(&newcomers).await
    }
}

impl From<Admitted> for RegisteredAgent {
    fn from(admitted: Admitted) -> Self {
        Self {
            agent: admitted.agent_id,
            host: admitted.host_id,
            status: admitted.status,
            conflict_with: None,
        }
    }
}
