//! The protocol's edge: the gRPC services of the port, conversion and bounds, and refusals.
//!
//! Generated protobuf types do not leave this module. In reading order: `service` (the two methods),
//! `auth`, `register`, [`heartbeat`], `write_limits`, `convert` and `trust`, [`Refusal`], and around them `middleware`, `health` and
//! `reflection`.

mod auth;
mod context;
mod convert;
mod health;
pub mod heartbeat;
mod middleware;
mod reflection;
mod refusal;
mod register;
mod service;
mod settings;
mod trust;
mod write_limits;

use std::{pin::Pin, sync::Arc, time::Duration};

use axum::middleware::{from_fn, from_fn_with_state};
use futures_util::Stream;
use svc_front::{listener::Refusals, peer::Peer};
use svc_proto::contract::{HEARTBEAT_PATH, REGISTER_PATH};
use svc_store::AgentId;
use tonic::{Request, Status, service::Routes};

pub use context::Context;
pub use refusal::Refusal;
pub use write_limits::WriteLimits;

use crate::{
    health::Health,
    rate::{Keyed, Rate},
};

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How often an agent may open a stream.
const OPENINGS: Rate = Rate::new(Duration::from_secs(10), 12);

/// All services of the gRPC port. At most `max_watches` health watches are open at a time.
pub fn routes(
    context: Arc<Context>,
    health: Health,
    max_watches: usize,
) -> Result<Routes, tonic_reflection::server::Error> {
    let mut routes = Routes::builder();
    let (stop, budget) = (context.stop.clone(), context.budget.clone());
    routes.add_service(service::service(context));
    routes.add_service(health::service(health, max_watches, stop));
    reflection::add_to(&mut routes)?;
    Ok(routes
        .routes()
        .into_axum_router()
        .layer(from_fn_with_state(
            reflection::permits(),
            reflection::bounded,
        ))
        .layer(from_fn_with_state(budget, middleware::single))
        .layer(from_fn(heartbeat::RawBody::set_aside))
        .layer(from_fn(middleware::translated))
        .into())
}

/// The client of a request, which the listener has added to it.
fn peer<T>(request: &Request<T>) -> Result<Peer, Refusal> {
    let peer = request.extensions().get();
    peer.cloned().ok_or(Refusal::Internal)
}

/// The listener's own refusals, with the statuses and reasons of the contract.
pub fn listener_refusals() -> Refusals {
    Refusals {
        too_many_connections: || Refusal::TooManyConnections.into_status(),
        too_many_calls: || Refusal::Overloaded.into_status(),
        internal: || Refusal::Internal.into_status(),
        method,
        reason: Refusal::reason_in,
    }
}

fn method(path: &str) -> &'static str {
    match path {
        REGISTER_PATH => "register",
        HEARTBEAT_PATH => "heartbeat",
        _ if path.starts_with("/grpc.health.v1.") => "health",
        _ if path.starts_with("/grpc.reflection.") => "reflection",
        _ => "other",
    }
}

/// The limiter for [`Context::openings`].
pub fn openings() -> Keyed<AgentId> {
    Keyed::new(OPENINGS)
}
