//! Newcomers: registrations of unknown keys with valid tokens, which come by the thousand when a fleet is rolled
//! out. They are registered in batches, one call of the database for each.
//!
//! A batch registers those whose machine is unknown too. The others (a machine with an agent, two calls with one key,
//! the last use of a token) are left to a transaction of their own, as every other registration. If the database
//! refuses a batch for what is in it, or takes too long for it, its members are all left to transactions of their own,
//! so that only the one at fault is refused. After a batch that took too long, the next ones are smaller.
//!
//! Newcomers need no permit: all of an instance use one connection. A newcomer that waits too long gets a retry delay, as
//! for a permit.
//!
//! **A caller that leaves** changes nothing for the others. Its registration is dropped if it is not in a batch yet. If
//! it is, it ends as if the answer were lost on the way: the client comes again with the same key, which is known then.

use std::sync::Arc;

use svc_store::{Newcomer, RegisteredNewcomer, Store, StoreError};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{RegisterError, RegisteredAgent, Registration, TokenHash, schedule::Schedule};
use crate::{
    batched::{Batch, Batched, Batches, batched},
    error_chain::chain,
    log_limit::LogLimit,
};

/// A batch takes a few dozen milliseconds, and a longer one would delay its first newcomer.
const BATCH: usize = 128;
/// Newcomers that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 16 * 1024;

static FAILED: LogLimit = LogLimit::new();

type Question = (Arc<Registration>, TokenHash);
/// The registered agent. `None`: it needs a transaction of its own.
type Answer = Result<Option<RegisteredAgent>, RegisterError>;

/// The handle through which newcomers are registered.
#[derive(Debug)]
pub(super) struct Newcomers {
    batched: Batched<Question, Answer>,
    schedule: Arc<Schedule>,
}

/// The background part that registers them.
#[derive(Debug)]
pub struct NewcomerPart {
    batches: Batches<Question, Answer>,
    store: Store,
    schedule: Arc<Schedule>,
    /// The most newcomers in the next batch.
    most: usize,
}

impl Newcomers {
    pub(super) fn new(store: Store) -> (Self, NewcomerPart) {
        let (batched, batches) = batched(QUEUE);
        let schedule = Arc::new(Schedule::new(1));
        let part = NewcomerPart {
            batches,
            store,
            schedule: schedule.clone(),
            most: BATCH,
        };
        (Self { batched, schedule }, part)
    }

    /// Waits until `until` at most.
    pub(super) async fn register(
        &self,
        wanted: Arc<Registration>,
        token: TokenHash,
        until: Instant,
    ) -> Answer {
        match timeout_at(until, self.batched.ask((wanted, token))).await {
            Ok(answer) => answer?,
            Err(_) => Err(RegisterError::RateLimited {
                retry: self.schedule.retry_delay(Instant::now()),
            }),
        }
    }
}

impl NewcomerPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = self.batches.next(self.most, &stop).await {
            let began = Instant::now();
            let newcomers = u32::try_from(batch.count()).unwrap_or(u32::MAX);
            self.pass(batch).await;
            self.schedule.record(began.elapsed() / newcomers.max(1));
        }
        Ok(())
    }

    async fn pass(&mut self, batch: Batch<Question, Answer>) {
        let outcome = self.admit(&batch).await;
        let late = outcome.as_ref().is_err_and(StoreError::is_timeout);
        self.most = next_size(self.most, late);
        match outcome {
            Ok(found) => answer(batch, found),
            Err(error) => {
                let (reason, registrations) = (chain(&error), batch.count());
                FAILED.line(|suppressed| {
                    tracing::warn!(
                        reason,
                        registrations,
                        suppressed,
                        "a batch of new agents failed"
                    );
                });
                batch.answer_all(|| match error.is_unavailable() && !late {
                    true => Err(RegisterError::Unavailable),
                    false => Ok(None),
                });
            }
        }
    }

    async fn admit(
        &self,
        batch: &Batch<Question, Answer>,
    ) -> Result<Vec<Option<RegisteredNewcomer>>, StoreError> {
        let newcomers = batch.questions().map(|(wanted, token)| Newcomer {
            key: &wanted.key.0,
            token: &token.0,
            facts: &wanted.facts,
            agent: &wanted.agent,
            address: wanted.address,
        });
        let newcomers: Vec<Newcomer<'_>> = newcomers.collect();
        self.store.registrations_admit(&newcomers).await
    }
}

/// Half as many after a batch that took too long, twice as many after any other.
fn next_size(most: usize, late: bool) -> usize {
    match late {
        true => (most / 2).max(1),
        false => (most * 2).min(BATCH),
    }
}

fn answer(batch: Batch<Question, Answer>, found: Vec<Option<RegisteredNewcomer>>) {
    let found = found.into_iter().map(|one| one.map(RegisteredAgent::from));
    let found: Vec<Option<RegisteredAgent>> = found.collect();
    for ((wanted, _), registered) in batch.questions().zip(&found) {
        if let Some(registered) = registered {
            registered.log(wanted.key, &wanted.facts);
        }
    }
    batch.answer(found.into_iter().map(Ok));
}

impl From<RegisteredNewcomer> for RegisteredAgent {
    fn from(newcomer: RegisteredNewcomer) -> Self {
        Self {
            agent: newcomer.agent_id,
            host: newcomer.host_id,
            status: newcomer.status,
            conflict_with: None,
            changed: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use svc_front::peer::ClientKey;
    use svc_store::{AgentFacts, DatabaseUrl, HostFacts, StoreOptions};

    use super::*;

    #[test]
    fn batches_shrink_while_they_take_too_long_and_grow_again() {
        let sizes = |late| move |most: &usize| Some(next_size(*most, late));
        let shrinking = std::iter::successors(Some(BATCH), sizes(true));
        assert_eq!(shrinking.take(9).last(), Some(1));
        let growing = std::iter::successors(Some(1), sizes(false));
        assert_eq!(growing.take(9).last(), Some(BATCH));
    }

    #[tokio::test(start_paused = true)]
    async fn newcomers_that_wait_too_long_get_distinct_retry_delays() {
        let url = DatabaseUrl::parse("postgres://nobody@localhost/nowhere").unwrap();
        let store = Store::new(url, StoreOptions::default()).unwrap();
        let (newcomers, _busy) = Newcomers::new(store);
        let until = Instant::now() + Duration::from_secs(5);
        let register = async |key| {
            let token = TokenHash([0; 32]);
            let wanted = Arc::new(Registration {
                key: ClientKey([key; 32]),
                token: Some(token),
                facts: HostFacts::default(),
                agent: AgentFacts::default(),
                address: Ipv4Addr::LOCALHOST.into(),
            });
            match newcomers.register(wanted, token, until).await {
                Err(RegisterError::RateLimited { retry }) => retry,
                other => panic!("{other:?}"),
            }
        };
        let (one, other) = tokio::join!(register(1), register(2));
        assert!(Instant::now() >= until);
        assert!(one != other && !one.is_zero() && !other.is_zero());
    }
}
