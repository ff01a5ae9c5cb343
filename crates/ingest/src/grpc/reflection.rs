//! Server reflection, so that tools such as grpcurl need no `.proto` file.
//!
//! Any client may ask, but none may occupy the service: a reflection stream ends after a minute, few may be open, and their
//! messages are small.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tokio::sync::Semaphore;
use tonic::service::RoutesBuilder;
use tonic_reflection::server::{Builder, Error};

use super::Refusal;

const STREAM_LIFE: Duration = Duration::from_mins(1);
/// Streams of all clients. The service answers as soon as it is asked, and keeps up to three answers that a client does not read.
const STREAMS: usize = 32;
/// A question is the name of a symbol or a file.
const MAX_QUESTION_BYTES: usize = 4 * 1024;
/// An answer is a whole file, and repeats its question.
const MAX_ANSWER_BYTES: usize = 32 * 1024;

/// Both versions of the reflection protocol that clients use.
pub(super) fn add_to(routes: &mut RoutesBuilder) -> Result<(), Error> {
    let v1 = descriptors().build_v1()?;
    let v1alpha = descriptors().build_v1alpha()?;
    routes
        .add_service(
            v1.max_decoding_message_size(MAX_QUESTION_BYTES)
                .max_encoding_message_size(MAX_ANSWER_BYTES),
        )
        .add_service(
            v1alpha
                .max_decoding_message_size(MAX_QUESTION_BYTES)
                .max_encoding_message_size(MAX_ANSWER_BYTES),
        );
    Ok(())
}

fn descriptors() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(svc_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // The details of refusals: without them grpcurl shows bytes.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// One permit for each stream.
pub(super) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(STREAMS))
}

/// Ends the requests of a reflection client, and with them its stream, after a maximum life. Without a free permit the client
/// must retry.
pub(super) async fn bounded(
    State(permits): State<Arc<Semaphore>>,
    request: Request,
    next: Next,
) -> Response {
    if !request.uri().path().starts_with("/grpc.reflection.") {
        return next.run(request).await;
    }
    let Ok(permit) = permits.try_acquire_owned() else {
        return Refusal::Overloaded.into_status().into_http();
    };
    let request = request.map(|body| {
        let requests = BodyStream::new(body).take_until(tokio::time::sleep(STREAM_LIFE));
        Body::new(StreamBody::new(requests))
    });
    next.run(request).await.map(|body| {
        let answers = BodyStream::new(body).map(move |frame| {
            let _held_until_dropped = &permit;
            frame
        });
        Body::new(StreamBody::new(answers))
    })
}
