//! `svc.ingest.v1.IngestService`: what an agent may ask, answered.

mod auth;
mod register;

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use svc_proto::v1::{
    HeartbeatRequest, RegisterRequest, RegisterResponse,
    ingest_service_server::{IngestService, IngestServiceServer},
};
use svc_store::AgentId;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    enrol::{Enrolment, Issuer, Turns},
    listener::ClientKey,
    rate::{Keyed, Rate},
    session::{self, Conversation, StreamContext},
    signing::SigningKey,
    watch::Watch,
};

/// The larger of the two messages: a report.
const MAX_MESSAGE: usize = 256 * 1024;
/// How often an agent may open a stream.
const OPENINGS: Rate = Rate::new(Duration::from_secs(10), 12);

/// What the service needs to answer agents.
#[derive(Debug)]
pub struct Ingest {
    pub key: Arc<SigningKey>,
    pub enrolment: Enrolment,
    /// Of registrations, from the first question to the JWT.
    pub turns: Turns,
    pub issuer: Issuer,
    pub watch: Arc<Watch>,
    pub streams: Arc<StreamContext>,
    pub openings: Keyed<(AgentId, ClientKey)>,
    /// Places for registrations that wait for a decision.
    pub waiting: Arc<Semaphore>,
    pub stop: CancellationToken,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Ingest {
    pub fn openings() -> Keyed<(AgentId, ClientKey)> {
        Keyed::new(OPENINGS)
    }
}

pub(super) fn service(ingest: Arc<Ingest>) -> IngestServiceServer<Service> {
    IngestServiceServer::new(Service(ingest)).max_decoding_message_size(MAX_MESSAGE)
}

pub(super) struct Service(Arc<Ingest>);

#[tonic::async_trait]
impl IngestService for Service {
    type RegisterStream = ResponseStream<RegisterResponse>;
    type HeartbeatStream = Conversation;

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
        let who = auth::authenticate(&self.0, &request)?;
        let streams = self.0.streams.clone();
        let conversation = session::converse(streams, who, request.into_inner());
        Ok(Response::new(conversation))
    }
}
