//! A stream as the body of its response: whoever asks the body for more runs the
//! stream, and is handed what it says.
//!
//! One message at a time: who speaks goes on when it was taken. So nothing piles up
//! for a client that does not read, nothing is read from it, and a connection whose
//! client takes nothing is closed by the listener.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, Stream, future::BoxFuture};
use svc_proto::v1::{HeartbeatResponse, heartbeat_response::Message as Saying};
use tonic::Status;

type Spoken = Result<HeartbeatResponse, Status>;

/// Where a stream puts what it says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Mutex<Option<Spoken>>>);

impl Outbox {
    /// Waits until it was taken.
    pub fn say(&self, message: Saying) -> impl Future<Output = ()> {
        let message = Some(message);
        self.put(Ok(HeartbeatResponse { message }))
    }

    /// The last word.
    pub fn end(&self, status: Status) -> impl Future<Output = ()> {
        self.put(Err(status))
    }

    /// Nobody has to be woken: what was put there is taken as soon as its stream waits,
    /// and who took it asks for more.
    fn put(&self, spoken: Spoken) -> impl Future<Output = ()> {
        *self.spoken() = Some(spoken);
        poll_fn(|_| match *self.spoken() {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        })
    }

    fn spoken(&self) -> MutexGuard<'_, Option<Spoken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Conversation {
    outbox: Outbox,
    /// Until it is over.
    stream: Option<BoxFuture<'static, ()>>,
}

impl Conversation {
    /// Of a stream that says what it says through the outbox it is given.
    pub fn new<F>(stream: impl FnOnce(Outbox) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let outbox = Outbox::default();
        let stream = Some(stream(outbox.clone()).boxed());
        Self { outbox, stream }
    }

    fn go_on(&mut self, context: &mut Context<'_>) {
        if let Some(stream) = &mut self.stream
            && stream.as_mut().poll(context).is_ready()
        {
            self.stream = None;
        }
    }
}

impl Stream for Conversation {
    type Item = Spoken;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Spoken>> {
        self.go_on(context);
        let spoken = self.outbox.spoken().take();
        match spoken {
            Some(spoken) => Poll::Ready(Some(spoken)),
            None if self.stream.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// The client is gone. What it sent before, a Goodbye perhaps, is still heard; what is
/// said to it meanwhile is said to nobody.
impl Drop for Conversation {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.go_on(&mut context);
        while self.outbox.spoken().take().is_some() {
            self.go_on(&mut context);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::StreamExt;
    use svc_proto::v1::Ack;
    use tokio::sync::Notify;

    use super::*;

    fn ack(up_to_seq: u64) -> Saying {
        Saying::Ack(Ack {
            up_to_seq,
            rejected: vec![],
        })
    }

    #[test]
    fn who_speaks_goes_on_when_it_was_taken() {
        let said = Arc::new(AtomicU32::new(0));
        let counter = said.clone();
        let mut conversation = Conversation::new(|out| async move {
            for seq in [1, 2] {
                out.say(ack(seq)).await;
                counter.fetch_add(1, Ordering::Relaxed);
            }
            out.end(Status::unavailable("enough")).await;
        });
        for taken in [0, 1] {
            let heard = conversation.next().now_or_never().flatten();
            let message = heard.expect("a word").expect("a message").message;
            assert_eq!(message, Some(ack(u64::from(taken) + 1)));
            assert_eq!(said.load(Ordering::Relaxed), taken, "it ran ahead");
        }
        let last = conversation.next().now_or_never().flatten();
        let status = last.expect("a word").expect_err("an end");
        assert_eq!(status.message(), "enough");
        let over = conversation.next().now_or_never();
        assert!(over.is_some_and(|more| more.is_none()), "it goes on");
    }

    #[test]
    fn what_was_sent_before_the_client_left_is_heard() {
        let (sent, heard) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
        let (message, counter) = (sent.clone(), heard.clone());
        let mut conversation = Conversation::new(|out| async move {
            message.notified().await;
            out.say(ack(1)).await;
            counter.fetch_add(1, Ordering::Relaxed);
            message.notified().await;
            counter.fetch_add(1, Ordering::Relaxed);
        });
        assert!(conversation.next().now_or_never().is_none(), "it waits");
        sent.notify_one();
        drop(conversation);
        assert_eq!(heard.load(Ordering::Relaxed), 1);
    }
}
