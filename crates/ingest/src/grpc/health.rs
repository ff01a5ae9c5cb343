//! `grpc.health.v1.Health`, which answers the same as `/healthz`.
//!
//! A watch ends after a minute, and only a limited number may be open. A client with a self-made
//! certificate may ask, but cannot occupy the service.

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::{sync::Semaphore, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{self, HealthServer},
};

use super::{Refusal, ResponseStream};
use crate::health::Health;

const WATCH_LIFE: Duration = Duration::from_mins(1);
const WATCH_TICK: Duration = Duration::from_secs(1);
const SERVICES: [&str; 2] = ["", "svc.ingest.v1.IngestService"];

pub(super) fn service(
    health: Health,
    watches: usize,
    stop: CancellationToken,
) -> HealthServer<HealthService> {
    HealthServer::new(HealthService {
        health,
        watches: Arc::new(Semaphore::new(watches)),
        stop,
    })
    .max_decoding_message_size(4 * 1024)
}

pub(super) struct HealthService {
    health: Health,
    watches: Arc<Semaphore>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl health_server::Health for HealthService {
    type WatchStream = ResponseStream<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(request.get_ref()) {
            return Err(Status::not_found("no service of that name is served here"));
        }
        Ok(Response::new(response(status(&self.health))))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let permit = self.watches.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::Overloaded)?;
        let known = is_known(request.get_ref());
        let health = self.health.clone();
        let observe = move || match known {
            true => status(&health),
            false => ServingStatus::ServiceUnknown,
        };
        let watched = changes(observe).map(move |status| {
            let _held_until_dropped = &permit;
            Ok(response(status))
        });
        let over = end_of_watch(self.stop.clone());
        Ok(Response::new(Box::pin(watched.take_until(over))))
    }
}

/// Returns after a watch's maximum life or, when the service stops, once that has been reported.
async fn end_of_watch(stop: CancellationToken) {
    let stopping = stop.run_until_cancelled(tokio::time::sleep(WATCH_LIFE));
    if stopping.await.is_none() {
        tokio::time::sleep(WATCH_TICK * 2).await;
    }
}

/// The status that `observe` returns, now and whenever it has changed.
fn changes(observe: impl Fn() -> ServingStatus + Send) -> impl Stream<Item = ServingStatus> + Send {
    let mut tick = tokio::time::interval(WATCH_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::unfold(
        (tick, None, observe),
        |(mut tick, last, observe)| async move {
            loop {
                tick.tick().await;
                let status = observe();
                if last != Some(status) {
                    return Some((status, (tick, Some(status), observe)));
                }
            }
        },
    )
}

fn is_known(request: &HealthCheckRequest) -> bool {
    SERVICES.contains(&request.service.as_str())
}

fn status(health: &Health) -> ServingStatus {
    match health.verdict() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}
