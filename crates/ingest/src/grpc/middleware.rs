//! Corrections to how tonic treats requests, so that clients see what the contract promises.
//!
//! - tonic answers a request that does not decode with statuses of its own (OUT_OF_RANGE for a message
//!   that is too large, INTERNAL for a malformed one). `translated` replaces them by refusals.
//! - tonic reads all messages of a call that takes one, and ignores all but one. `single` refuses them.
//! - tonic reads a message of any size as soon as it arrives. `single` takes room for a registration first.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use svc_pipeline::budget::{ReportBudget, Room};
use svc_proto::contract::{REGISTER_PATH, limits::MAX_REGISTER_BYTES};
use tonic::{Code, Status};

use super::Refusal;

/// The prefix of each message: a flag and the message's length.
const PREFIX: usize = 5;

/// Limits the request of a registration to one message, refuses it by the length that it claims, and reads it when there is
/// room for it, which it keeps until it is answered.
pub(super) async fn single(
    State(budget): State<Arc<ReportBudget>>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() != REGISTER_PATH {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    match only_message(body, &budget).await {
        Ok((body, _room)) => next.run(Request::from_parts(head, body)).await,
        Err(refusal) => refusal.into_status().into_http(),
    }
}

type Data = Result<Frame<Bytes>, axum::Error>;

/// The body and the room for its message. Until there is room, it is read only up to the frame that tells the message's length.
async fn only_message(body: Body, budget: &ReportBudget) -> Result<(Body, Room), Refusal> {
    let (mut message, mut begun) = (Message::default(), Vec::new());
    let mut frames = BodyStream::new(body);
    while message.length().is_none()
        && let Some(data) = frames.next().await
    {
        // A body that has failed fails at each further poll: reading on would never end.
        let data = data.map_err(|_| Refusal::MalformedRequest("it did not arrive".into()))?;
        begun.push(message.checked(Ok(data))?);
    }
    let room = budget
        .to_register(message.length().unwrap_or_default())
        .await;
    let room = room.ok_or(Refusal::Overloaded)?;
    let rest = frames.map(move |data| match message.checked(data) {
        Ok(data) => data,
        Err(refusal) => Err(axum::Error::new(Status::from(refusal))),
    });
    let frames = stream::iter(begun).chain(rest);
    Ok((Body::new(StreamBody::new(frames)), room))
}

/// The first message of a body, as far as it has arrived.
#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    seen: usize,
}

impl Message {
    /// A frame of the body that does not break the rules of [`grow`](Self::grow).
    fn checked(&mut self, data: Data) -> Result<Data, Refusal> {
        if let Some(bytes) = data.as_ref().ok().and_then(Frame::data_ref) {
            self.grow(bytes)?;
        }
        Ok(data)
    }

    /// Refuses a message whose prefix claims too large a length, and any data after the message's end.
    fn grow(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let missing = PREFIX - self.prefix.len();
        self.prefix.extend(data.iter().take(missing));
        self.seen += data.len();
        let Some(length) = self.length() else {
            return Ok(());
        };
        if length > MAX_REGISTER_BYTES {
            return Err(Refusal::MessageTooLarge);
        }
        if self.seen > PREFIX + length {
            let what = "it has more than one message";
            return Err(Refusal::MalformedRequest(what.into()));
        }
        Ok(())
    }

    /// The length that the message claims, once its prefix has arrived.
    fn length(&self) -> Option<usize> {
        let [_, a, b, c, d] = self.prefix[..] else {
            return None;
        };
        Some(u32::from_be_bytes([a, b, c, d]) as usize)
    }
}

pub(super) async fn translated(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    match Status::from_header_map(response.headers()).and_then(|status| translate(&status)) {
        Some(refusal) => refusal.into_status().into_http::<Body>(),
        None => response,
    }
}

/// A refusal of this service carries details; a status without details is tonic's own.
fn translate(status: &Status) -> Option<Refusal> {
    if !status.details().is_empty() {
        return None;
    }
    match status.code() {
        Code::OutOfRange => Some(Refusal::MessageTooLarge),
        Code::Internal if status.message() != Refusal::Internal.message() => Some(
            Refusal::MalformedRequest("it does not decode as the protocol's message".into()),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_in_any_pieces_is_accepted_and_one_byte_more_is_refused() {
        let message = [0, 0, 0, 0, 3, b'a', b'b', b'c'];
        for size in 1..=message.len() {
            let mut whole = Message::default();
            assert!(message.chunks(size).all(|data| whole.grow(data).is_ok()));
            assert!(whole.grow(&[]).is_ok());
            assert!(whole.grow(&[0]).is_err(), "in pieces of {size}");
        }
        assert!(Message::default().grow(&[0; 6]).is_err());
    }

    #[tokio::test]
    async fn a_body_that_fails_before_its_length_is_known_is_given_up() {
        let budget = ReportBudget::new(Default::default(), &Default::default());
        let reset = || Err(axum::Error::new(Status::cancelled("reset")));
        let frames = [reset(), Ok(Frame::data(Bytes::from_static(&[0; 5])))];
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let given_up = only_message(body, &budget).await;
        assert!(matches!(given_up, Err(Refusal::MalformedRequest(_))));
    }

    #[test]
    fn a_message_is_refused_by_the_length_in_its_prefix() {
        let claimed = |length: u32| {
            let prefix = [&[0][..], &length.to_be_bytes()].concat();
            Message::default().grow(&prefix)
        };
        assert_eq!(claimed(64 * 1024), Ok(()));
        assert_eq!(claimed(64 * 1024 + 1), Err(Refusal::MessageTooLarge));
        assert_eq!(claimed(u32::MAX), Err(Refusal::MessageTooLarge));
    }
}
