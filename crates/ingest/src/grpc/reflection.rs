//! Server reflection, so that tools such as grpcurl need no `.proto` file.
//!
//! Its streams end after a minute: a stranger may ask, but not hold places.

use std::time::Duration;

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use futures_util::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use tonic::service::RoutesBuilder;
use tonic_reflection::server::{Builder, Error};

const STREAM_LIFE: Duration = Duration::from_mins(1);

/// Both versions that clients speak.
pub(super) fn add_to(routes: &mut RoutesBuilder) -> Result<(), Error> {
    routes.add_service(descriptors().build_v1()?);
    routes.add_service(descriptors().build_v1alpha()?);
    Ok(())
}

fn descriptors() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(svc_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Ends a reflection client's questions, and with them its stream, after a while.
pub(super) async fn bounded(request: Request, next: Next) -> Response {
    let bounded = if request.uri().path().starts_with("/grpc.reflection.") {
        request.map(|body| {
            let questions = BodyStream::new(body).take_until(tokio::time::sleep(STREAM_LIFE));
            Body::new(StreamBody::new(questions))
        })
    } else {
        request
    };
    next.run(bounded).await
}
