//! Server reflection, so that tools such as grpcurl need no `.proto` file.
//!
//! A reflection stream ends after a minute: any client may ask, but none may occupy the service.

use std::time::Duration;

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tonic::service::RoutesBuilder;
use tonic_reflection::server::{Builder, Error};

const STREAM_LIFE: Duration = Duration::from_mins(1);

/// Both versions of the reflection protocol that clients use.
pub(super) fn add_to(routes: &mut RoutesBuilder) -> Result<(), Error> {
    routes.add_service(descriptors().build_v1()?);
    routes.add_service(descriptors().build_v1alpha()?);
    Ok(())
}

fn descriptors() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(svc_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // The details of refusals: without them grpcurl shows bytes.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// Ends the requests of a reflection client, and with them its stream, after a maximum life.
pub(super) async fn bounded(request: Request, next: Next) -> Response {
    let bounded = if request.uri().path().starts_with("/grpc.reflection.") {
        request.map(|body| {
            let requests = BodyStream::new(body).take_until(tokio::time::sleep(STREAM_LIFE));
            Body::new(StreamBody::new(requests))
        })
    } else {
        request
    };
    next.run(bounded).await
}
