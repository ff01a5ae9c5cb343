//! The first question of every registration: is the client's key known, and what state is its token in?
//!
//! Anyone can ask it, with as many self-made keys as they like. So all questions that wait are one query, over one
//! connection: a crowd makes the batches larger and takes no connection from others. The query belongs to the part
//! that sends it, so a client that leaves in the middle does not cost a connection; a question whose client has left
//! is not sent.

use svc_store::{RegistrationLookup, Store};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{RegisterError, TokenHash};
use crate::{error_chain::chain, peer::ClientKey};

const BATCH: usize = 512;
/// Questions that wait for a batch. A client that finds the queue full gets OVERLOADED.
const QUEUE: usize = 32 * 1024;

#[derive(Debug)]
struct Question {
    key: ClientKey,
    token: Option<TokenHash>,
    reply: oneshot::Sender<Result<RegistrationLookup, RegisterError>>,
}

/// The handle through which registrations ask.
#[derive(Clone, Debug)]
pub(super) struct Lookups(mpsc::Sender<Question>);

/// The background part that sends the queries.
#[derive(Debug)]
pub struct LookupPart {
    questions: mpsc::Receiver<Question>,
    store: Store,
}

impl Lookups {
    pub(super) fn new(store: Store) -> (Self, LookupPart) {
        let (sender, questions) = mpsc::channel(QUEUE);
        (Self(sender), LookupPart { questions, store })
    }

    pub(super) async fn look(
        &self,
        key: ClientKey,
        token: Option<TokenHash>,
    ) -> Result<RegistrationLookup, RegisterError> {
        let (reply, answer) = oneshot::channel();
        let question = Question { key, token, reply };
        let asked = self.0.try_send(question);
        asked.map_err(|_| RegisterError::Overloaded)?;
        answer.await.map_err(|_| RegisterError::Unavailable)?
    }
}

impl LookupPart {
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        loop {
            let received = self.questions.recv_many(&mut batch, BATCH);
            if stop
                .run_until_cancelled(received)
                .await
                .is_none_or(|count| count == 0)
            {
                break;
            }
            batch.retain(|question| !question.reply.is_closed());
            self.pass(&mut batch).await;
        }
        stop.cancelled().await;
        Ok(())
    }

    /// Answers the questions of the batch and empties it.
    async fn pass(&self, batch: &mut Vec<Question>) {
        if batch.is_empty() {
            return;
        }
        let asked = batch.iter().map(|question| {
            let token = question.token.as_ref();
            (&question.key.0, token.map(|token| &token.0))
        });
        match self
            .store
            .registrations_lookup(&asked.collect::<Vec<_>>())
            .await
        {
            Ok(found) => {
                for (question, found) in batch.drain(..).zip(found) {
                    drop(question.reply.send(Ok(found)));
                }
            }
            Err(error) => {
                let away = error.is_unavailable();
                let reason = chain(&error);
                tracing::warn!(
                    reason,
                    registrations = batch.len(),
                    "keys and tokens could not be looked up"
                );
                for question in batch.drain(..) {
                    let failed = match away {
                        true => RegisterError::Unavailable,
                        false => RegisterError::LookupFailed,
                    };
                    drop(question.reply.send(Err(failed)));
                }
            }
        }
    }
}
