//! `svc.ingest.v1.IngestService`: what an agent may ask, answered.

mod auth;
mod register;

use std::{pin::Pin, sync::Arc};

use futures_util::Stream;
use svc_proto::v1::{
    HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
    ingest_service_server::{IngestService, IngestServiceServer},
};
use svc_store::Store;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    enrol::{Enrolment, Issuer},
    signing::SigningKey,
    watch::Watch,
};

/// Registration's limit; the smaller of the two messages.
const MAX_REGISTER_MESSAGE: usize = 64 * 1024;

/// What the service needs to answer agents.
#[derive(Debug)]
pub struct Ingest {
    pub store: Store,
    pub key: Arc<SigningKey>,
    pub enrolment: Enrolment,
    pub issuer: Issuer,
    pub watch: Arc<Watch>,
    /// Places for registrations that wait for a decision.
    pub waiting: Arc<Semaphore>,
    pub stop: CancellationToken,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(super) fn service(ingest: Arc<Ingest>) -> IngestServiceServer<Service> {
    IngestServiceServer::new(Service(ingest)).max_decoding_message_size(MAX_REGISTER_MESSAGE)
}

pub(super) struct Service(Arc<Ingest>);

#[tonic::async_trait]
impl IngestService for Service {
    type RegisterStream = ResponseStream<RegisterResponse>;
    type HeartbeatStream = ResponseStream<HeartbeatResponse>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        Ok(Response::new(
            register::register(self.0.clone(), request).await?,
        ))
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        auth::authenticate(&self.0, &request).await?;
        Err(Status::unimplemented(
            "heartbeats are not served by this version",
        ))
    }
}
