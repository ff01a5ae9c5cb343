//! The first question of every registration: is the client's key known, and what state is its token in?
//!
//! Anyone can ask it, with as many self-made keys as they like, so all questions that wait are one query.

use svc_front::peer::ClientKey;
use svc_store::{RegistrationLookup, Store};
use tokio_util::sync::CancellationToken;

use super::{RegisterError, TokenHash};
use crate::{
    batched::{Batch, Batched, Batches, batched},
    error_chain::chain,
    log_limit::LogLimit,
};

const BATCH: usize = 512;
/// Questions that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;

static FAILED: LogLimit = LogLimit::new();

type Question = (ClientKey, Option<TokenHash>);
type Answer = Result<RegistrationLookup, RegisterError>;

/// The handle through which registrations ask.
#[derive(Clone, Debug)]
pub(super) struct Lookups(Batched<Question, Answer>);

/// The background part that sends the queries.
#[derive(Debug)]
pub struct LookupPart {
    questions: Batches<Question, Answer>,
    store: Store,
}

impl Lookups {
    pub(super) fn new(store: Store) -> (Self, LookupPart) {
        let (handle, questions) = batched(QUEUE);
        (Self(handle), LookupPart { questions, store })
    }

    pub(super) async fn look(&self, key: ClientKey, token: Option<TokenHash>) -> Answer {
        self.0.ask((key, token)).await?
    }
}

impl LookupPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while let Some(batch) = self.questions.next(BATCH, &stop).await {
            self.pass(batch).await;
        }
        Ok(())
    }

    async fn pass(&self, batch: Batch<Question, Answer>) {
        let asked = batch.questions();
        let asked = asked.map(|(key, token)| (&key.0, token.as_ref().map(|token| &token.0)));
        let asked: Vec<_> = asked.collect();
        match self.store.registrations_lookup(&asked).await {
            Ok(found) => batch.answer(found.into_iter().map(Ok)),
            Err(error) => {
                let (reason, registrations) = (chain(&error), batch.count());
                FAILED.line(|suppressed| {
                    tracing::warn!(
                        reason,
                        registrations,
                        suppressed,
                        "keys and tokens could not be looked up"
                    );
                });
                batch.answer_all(|| match error.is_unavailable() {
                    true => Err(RegisterError::Unavailable),
                    false => Err(RegisterError::LookupFailed),
                });
            }
        }
    }
}
