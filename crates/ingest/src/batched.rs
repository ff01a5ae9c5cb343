//! Questions that many tasks ask at once, answered in batches: one query answers all that wait.
//!
//! A crowd makes the batches larger and takes no more connections. The query belongs to the part that
//! sends it, so an asker that leaves in the middle does not cost a connection; a question whose asker
//! has left before is dropped.

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};
use tokio_util::sync::CancellationToken;

/// The handle through which tasks ask.
#[derive(Debug)]
pub struct Batched<Q, A>(mpsc::Sender<(Q, oneshot::Sender<A>)>);

/// The end of the part that answers.
#[derive(Debug)]
pub struct Batches<Q, A>(mpsc::Receiver<(Q, oneshot::Sender<A>)>);

/// Questions that wait for their answers, in the order in which they came.
#[derive(Debug)]
pub struct Batch<Q, A>(Vec<(Q, oneshot::Sender<A>)>);

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Too many questions wait.
    Full,
    /// The part that answers has ended.
    Ended,
}

/// A handle and its part. `waiting` bounds the questions that wait for a batch: one more is refused as
/// [`Unanswered::Full`].
pub fn batched<Q, A>(waiting: usize) -> (Batched<Q, A>, Batches<Q, A>) {
    let (sender, questions) = mpsc::channel(waiting);
    (Batched(sender), Batches(questions))
}

impl<Q, A> Batched<Q, A> {
    pub async fn ask(&self, question: Q) -> Result<A, Unanswered> {
        let (reply, answer) = oneshot::channel();
        self.0
            .try_send((question, reply))
            .map_err(|error| match error {
                TrySendError::Full(_) => Unanswered::Full,
                TrySendError::Closed(_) => Unanswered::Ended,
            })?;
        answer.await.map_err(|_| Unanswered::Ended)
    }
}

impl<Q, A> Clone for Batched<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q, A> Batches<Q, A> {
    /// The next batch of at most `most` questions. It is not empty. `None` means stop.
    pub async fn next(&mut self, most: usize, stop: &CancellationToken) -> Option<Batch<Q, A>> {
        loop {
            let mut batch = Vec::new();
            let received = self.0.recv_many(&mut batch, most);
            if stop.run_until_cancelled(received).await? == 0 {
                stop.cancelled().await; // All handles are gone, and a part ends only when it is stopped.
                return None;
            }
            batch.retain(|(_, reply)| !reply.is_closed());
            if !batch.is_empty() {
                return Some(Batch(batch));
            }
        }
    }
}

impl<Q, A> Batch<Q, A> {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn questions(&self) -> impl Iterator<Item = &Q> {
        self.0.iter().map(|(question, _)| question)
    }

    /// Answers each question, in order.
    pub fn answer(self, answers: impl IntoIterator<Item = A>) {
        for ((_, reply), answer) in self.0.into_iter().zip(answers) {
            drop(reply.send(answer)); // The asker may have left.
        }
    }

    /// Gives all questions the same answer.
    pub fn answer_all(self, answer: impl Fn() -> A) {
        self.answer(std::iter::repeat_with(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn questions_that_wait_are_one_batch_without_those_whose_asker_has_left() {
        let (handle, mut batches) = batched::<u32, u32>(8);
        let stop = CancellationToken::new();
        let asking = [1, 2, 3].map(|question| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.ask(question).await })
        });
        while handle.0.capacity() > 5 {
            tokio::task::yield_now().await;
        }
        let [one, two, three] = asking;
        two.abort();
        assert!(two.await.unwrap_err().is_cancelled());
        let batch = batches.next(8, &stop).await.unwrap();
        assert_eq!(batch.questions().copied().collect::<Vec<_>>(), [1, 3]);
        batch.answer([10, 30]);
        assert_eq!(one.await.unwrap(), Ok(10));
        assert_eq!(three.await.unwrap(), Ok(30));
        stop.cancel();
        assert!(batches.next(8, &stop).await.is_none());
    }

    #[tokio::test]
    async fn a_question_too_many_is_refused() {
        let (handle, batches) = batched::<u32, u32>(1);
        let waiting = tokio::spawn({
            let handle = handle.clone();
            async move { handle.ask(1).await }
        });
        while handle.0.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(handle.ask(2).await, Err(Unanswered::Full));
        drop(batches);
        assert_eq!(waiting.await.unwrap(), Err(Unanswered::Ended));
        assert_eq!(handle.ask(3).await, Err(Unanswered::Ended));
    }
}
