//! Where tonic's own view of a request becomes the contract's.
//!
//! tonic decodes a request before a handler sees it, and answers what does not
//! decode with statuses of its own: OUT_OF_RANGE for a message that is too large,
//! INTERNAL for one that is malformed. Neither is what the contract says. Of a
//! call that takes one message it reads all that come, and forgets the others.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tonic::{Code, Status};

use super::Refusal;

const REGISTER: &str = "/svc.ingest.v1.IngestService/Register";
/// What stands before each message: a flag and the message's length.
const PREFIX: usize = 5;

/// Ends a registration's request after its one message.
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
        if frame.data_ref().is_some_and(|data| message.ends_in(data)) {
            let refusal = Refusal::MalformedRequest("it has more than one message".into());
            return Err(axum::Error::new(Status::from(refusal)));
        }
        Ok(frame)
    });
    Body::new(StreamBody::new(frames))
}

/// The first message of a body, as far as it has come.
#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    seen: u64,
}

impl Message {
    /// Whether `data`, which comes next, goes on after the message's end.
    fn ends_in(&mut self, data: &[u8]) -> bool {
        let missing = PREFIX - self.prefix.len();
        self.prefix.extend(data.iter().take(missing));
        self.seen += data.len() as u64;
        let [_, a, b, c, d] = self.prefix[..] else {
            return false;
        };
        let length = u64::from(u32::from_be_bytes([a, b, c, d]));
        self.seen > PREFIX as u64 + length
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
            assert!(message.chunks(size).all(|data| !whole.ends_in(data)));
            assert!(!whole.ends_in(&[]));
            assert!(whole.ends_in(&[0]), "in pieces of {size}");
        }
        assert!(Message::default().ends_in(&[0; 6]));
    }
}
