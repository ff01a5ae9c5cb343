//! Corrections to how tonic treats requests, so that clients see what the contract promises.
//!
//! - tonic answers a request that does not decode with statuses of its own (OUT_OF_RANGE for a message
//!   that is too large, INTERNAL for a malformed one). `translated` replaces them by refusals.
//! - tonic reads all messages of a call that takes one, and ignores all but one. `single` refuses them.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use svc_proto::contract::{REGISTER_PATH, limits::MAX_REGISTER_BYTES};
use tonic::{Code, Status};

use super::Refusal;

/// The prefix of each message: a flag and the message's length.
const PREFIX: usize = 5;

/// Limits the request of a registration to one message, and refuses it by the length that it claims.
pub(super) async fn single(request: Request, next: Next) -> Response {
    let request = if request.uri().path() == REGISTER_PATH {
        request.map(only_message)
    } else {
        request
    };
    next.run(request).await
}

fn only_message(body: Body) -> Body {
    let mut message = Message::default();
    let frames = BodyStream::new(body).map(move |frame| {
        let frame = frame?;
        let data = frame.data_ref().map_or(&[][..], |data| data);
        message
            .grow(data)
            .map_err(Status::from)
            .map_err(axum::Error::new)?;
        Ok::<_, axum::Error>(frame)
    });
    Body::new(StreamBody::new(frames))
}

/// The first message of a body, as far as it has arrived.
#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    seen: usize,
}

impl Message {
    /// Refuses a message whose prefix claims too large a length, and any data after the message's end.
    fn grow(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let missing = PREFIX - self.prefix.len();
        self.prefix.extend(data.iter().take(missing));
        self.seen += data.len();
        let [_, a, b, c, d] = self.prefix[..] else {
            return Ok(());
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MAX_REGISTER_BYTES {
            return Err(Refusal::MessageTooLarge);
        }
        if self.seen > PREFIX + length {
            let what = "it has more than one message";
            return Err(Refusal::MalformedRequest(what.into()));
        }
        Ok(())
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
