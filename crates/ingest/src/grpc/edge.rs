//! Where tonic's own view of a request becomes the contract's.
//!
//! tonic decodes a request before a handler sees it, and answers what does not
//! decode with statuses of its own: OUT_OF_RANGE for a message that is too large,
//! INTERNAL for one that is malformed. Neither is what the contract says. Of a
//! call that takes one message it reads all that come, and forgets the others;
//! and it knows one limit of a message's size for both methods.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tonic::{Code, Status};

use super::Refusal;

const REGISTER: &str = "/svc.ingest.v1.IngestService/Register";
const MAX_REGISTER_MESSAGE: u32 = 64 * 1024;
/// What stands before each message: a flag and the message's length.
const PREFIX: usize = 5;

/// Holds a registration's request to one message of its own size.
pub(super) async fn single(request: Request, next: Next) -> Response {
    let request = if request.uri().path() == REGISTER {
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

/// The first message of a body, as far as it has come.
#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    seen: usize,
}

impl Message {
    /// Refuses a message by the length it claims, and what comes after its end.
    fn grow(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let missing = PREFIX - self.prefix.len();
        self.prefix.extend(data.iter().take(missing));
        self.seen += data.len();
        let [_, a, b, c, d] = self.prefix[..] else {
            return Ok(());
        };
        let length = u32::from_be_bytes([a, b, c, d]);
        if length > MAX_REGISTER_MESSAGE {
            return Err(Refusal::MessageTooLarge);
        }
        if self.seen > PREFIX + length as usize {
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

/// A refusal of ours carries details; a bare one is tonic's.
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
    fn one_message_in_any_pieces_is_one_and_a_byte_more_is_another() {
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
    fn a_message_is_refused_by_the_length_it_claims() {
        let claimed = |length: u32| {
            let prefix = [&[0][..], &length.to_be_bytes()].concat();
            Message::default().grow(&prefix)
        };
        assert_eq!(claimed(64 * 1024), Ok(()));
        assert_eq!(claimed(64 * 1024 + 1), Err(Refusal::MessageTooLarge));
        assert_eq!(claimed(u32::MAX), Err(Refusal::MessageTooLarge));
    }
}
