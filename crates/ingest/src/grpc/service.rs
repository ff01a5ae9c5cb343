//! The gRPC service `svc.ingest.v1.IngestService`.

use std::sync::Arc;

use svc_proto::{
    contract::limits::MAX_REGISTER_BYTES,
    v1::{
        HeartbeatRequest, RegisterRequest, RegisterResponse,
        ingest_service_server::{IngestService, IngestServiceServer},
    },
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    Context, Refusal, ResponseStream, auth,
    heartbeat::{self, Conversation, RawBody},
    register,
};

pub(super) fn service(context: Arc<Context>) -> IngestServiceServer<Service> {
    IngestServiceServer::new(Service(context)).max_decoding_message_size(MAX_REGISTER_BYTES)
}

pub(super) struct Service(Arc<Context>);

#[tonic::async_trait]
impl IngestService for Service {
    type RegisterStream = ResponseStream<RegisterResponse>;
    type HeartbeatStream = Conversation;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let responses = register::register(self.0.clone(), request).await?;
        Ok(Response::new(responses))
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let client = auth::authenticate(&self.0, &request)?;
        auth::admit(&self.0, &client).await?;
        let body = request.extensions().get().and_then(RawBody::take);
        let body = body.ok_or(Refusal::Internal)?;
        let conversation = heartbeat::converse(self.0.clone(), client, body);
        Ok(Response::new(conversation))
    }
}
