//! The response body of a heartbeat call. Polling it runs the stream's handler.
//!
//! A stream has no task and no channel of its own. hyper polls the response body; each poll runs the
//! handler until it parks, and takes the message that the handler has put into its [`Outbox`], if any.
//! This saves the memory of a task and of a channel for each of many thousands of idle streams.
//!
//! **One message at a time.** A handler that sends a message resumes only after the message was taken.
//! hyper polls the body again only when HTTP/2 has room for more, so nothing piles up for a client that
//! does not read: its handler stays parked, reads nothing from it, and the listener closes the connection
//! after the send deadline.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use futures_util::{FutureExt, Stream, future::BoxFuture};
use svc_proto::{ServerMessage, v1::HeartbeatResponse};
use tonic::Status;

use crate::sync::lock;

type Outgoing = Result<HeartbeatResponse, Status>;

/// The place for the one message on its way to the client.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Mutex<Option<Outgoing>>>);

impl Outbox {
    /// Sends a message, and returns when it has been taken.
    pub(super) fn send(&self, message: ServerMessage) -> impl Future<Output = ()> {
        let message = Some(message);
        self.put(Ok(HeartbeatResponse { message }))
    }

    /// Ends the stream with this status.
    pub(super) fn end(&self, status: Status) -> impl Future<Output = ()> {
        self.put(Err(status))
    }

    /// No waker is registered here, although the future may return `Pending`. It cannot be forgotten:
    /// `put` only ever runs inside [`Conversation::poll_next`], which takes the message right after the
    /// handler has parked and returns it to hyper. hyper polls the body again once the message has been
    /// written. That next poll runs the handler, which finds the slot empty, and `put` completes. A
    /// handler that awaited `put` in a task of its own would never be woken: do not spawn one.
    fn put(&self, outgoing: Outgoing) -> impl Future<Output = ()> {
        *lock(&self.0) = Some(outgoing);
        poll_fn(|_| match *lock(&self.0) {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        })
    }
}

pub(crate) struct Conversation {
    outbox: Outbox,
    /// `None` once the handler has returned.
    handler: Option<BoxFuture<'static, ()>>,
}

impl Conversation {
    /// `handler` makes the stream's handler from the outbox that it sends through.
    pub(super) fn new<F>(handler: impl FnOnce(Outbox) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let outbox = Outbox::default();
        let handler = Some(handler(outbox.clone()).boxed());
        Self { outbox, handler }
    }

    fn poll_handler(&mut self, context: &mut Context<'_>) {
        if let Some(handler) = &mut self.handler
            && handler.as_mut().poll(context).is_ready()
        {
            self.handler = None;
        }
    }
}

impl Stream for Conversation {
    type Item = Outgoing;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        self.poll_handler(context);
        let outgoing = lock(&self.outbox.0).take();
        match outgoing {
            Some(outgoing) => Poll::Ready(Some(outgoing)),
            None if self.handler.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// hyper drops the body when the client has gone away. Messages that the client sent before that may
/// still be unread, a Goodbye among them. The handler is therefore polled until it makes no more progress,
/// with a waker that does nothing; what it sends meanwhile is discarded. Then it is dropped at whatever
/// `await` it has reached, and the drop of its `HeartbeatStream` closes the session.
impl Drop for Conversation {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.poll_handler(&mut context);
        while lock(&self.outbox.0).take().is_some() {
            self.poll_handler(&mut context);
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

    fn ack(up_to_seq: u64) -> ServerMessage {
        ServerMessage::Ack(Ack {
            up_to_seq,
            rejected: vec![],
        })
    }

    #[test]
    fn the_handler_resumes_after_its_message_is_taken() {
        let sent = Arc::new(AtomicU32::new(0));
        let counter = sent.clone();
        let mut conversation = Conversation::new(|out| async move {
            for seq in [1, 2] {
                out.send(ack(seq)).await;
                counter.fetch_add(1, Ordering::Relaxed);
            }
            out.end(Status::unavailable("enough")).await;
        });
        for taken in [0, 1] {
            let next = conversation.next().now_or_never().flatten();
            let message = next.expect("an item").expect("a message").message;
            assert_eq!(message, Some(ack(u64::from(taken) + 1)));
            assert_eq!(sent.load(Ordering::Relaxed), taken, "it ran ahead");
        }
        let last = conversation.next().now_or_never().flatten();
        let status = last.expect("an item").expect_err("a status");
        assert_eq!(status.message(), "enough");
        let over = conversation.next().now_or_never();
        assert!(
            over.is_some_and(|more| more.is_none()),
            "the stream goes on"
        );
    }

    #[test]
    fn messages_sent_before_the_client_left_are_processed() {
        let (arrived, processed) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
        let (message, counter) = (arrived.clone(), processed.clone());
        let mut conversation = Conversation::new(|out| async move {
            message.notified().await;
            out.send(ack(1)).await;
            counter.fetch_add(1, Ordering::Relaxed);
            message.notified().await;
            counter.fetch_add(1, Ordering::Relaxed);
        });
        assert!(conversation.next().now_or_never().is_none(), "it waits");
        arrived.notify_one();
        drop(conversation);
        assert_eq!(processed.load(Ordering::Relaxed), 1);
    }
}
