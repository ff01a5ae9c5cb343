//! What a stream says to its client: a short queue, which the client has to keep taking from.
//!
//! Messages are boxed, because the channel sets room aside for 32 of them however few
//! there are, and does so for as long as the stream lives.

use std::time::Duration;

use futures_util::{
    Stream, StreamExt,
    future::{BoxFuture, Either, Ready, ready},
};
use svc_proto::v1::{HeartbeatResponse, heartbeat_response::Message as Saying};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Messages that the client has not taken. When there are so many, who speaks waits.
const ROOM: usize = 32;

/// Done at once where there is room, which there nearly always is, and large only where there is not.
pub type Said<'a> = Either<Ready<bool>, BoxFuture<'a, bool>>;

type Spoken = Box<Result<HeartbeatResponse, Status>>;

#[derive(Clone, Debug)]
pub struct Outbox {
    sender: mpsc::Sender<Spoken>,
    /// How long a client may leave a message untaken that waits for room.
    deadline: Duration,
}

impl Outbox {
    /// The outbox, and its other end.
    pub fn new(
        deadline: Duration,
    ) -> (
        Self,
        impl Stream<Item = Result<HeartbeatResponse, Status>> + Send,
    ) {
        let (sender, receiver) = mpsc::channel(ROOM);
        let spoken = ReceiverStream::new(receiver).map(|spoken: Spoken| *spoken);
        (Self { sender, deadline }, spoken)
    }

    /// False when nobody listens any more.
    pub fn say(&self, message: Saying) -> Said<'_> {
        let message = Some(message);
        self.put(Box::new(Ok(HeartbeatResponse { message })))
    }

    /// The last word.
    pub fn end(&self, status: Status) -> Said<'_> {
        self.put(Box::new(Err(status)))
    }

    fn put(&self, spoken: Spoken) -> Said<'_> {
        match self.sender.try_send(spoken) {
            Ok(()) => Said::Left(ready(true)),
            Err(TrySendError::Closed(_)) => Said::Left(ready(false)),
            Err(TrySendError::Full(spoken)) => Said::Right(Box::pin(async {
                let sent = timeout(self.deadline, self.sender.send(spoken)).await;
                matches!(sent, Ok(Ok(())))
            })),
        }
    }

    /// Whether the client has taken everything.
    pub fn is_empty(&self) -> bool {
        self.sender.capacity() == ROOM
    }

    /// Waits until it has; false once it has left something untaken for too long.
    pub async fn emptied(&self, since: Instant) -> bool {
        let emptied = timeout_at(since + self.deadline, self.sender.reserve_many(ROOM)).await;
        matches!(emptied, Ok(Ok(_)))
    }
}
