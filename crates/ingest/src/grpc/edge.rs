//! Where tonic's own refusals of a request become the contract's.
//!
//! tonic decodes a request before a handler sees it, and answers what does not
//! decode with statuses of its own: OUT_OF_RANGE for a message that is too large,
//! INTERNAL for one that is malformed. Neither is what the contract says.

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use tonic::{Code, Status};

use super::Refusal;

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
