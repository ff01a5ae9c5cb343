//! The protocol's edge: which gRPC services the port offers, and how they refuse.

pub(crate) mod convert;
mod edge;
mod health;
mod ingest;
mod reflection;
mod refusal;

use std::sync::Arc;

use axum::middleware::from_fn;
use tonic::service::Routes;

pub use ingest::Ingest;
pub use refusal::Refusal;

use crate::health::Health;

/// All services of the gRPC port. `bystanders` is how many streams without an
/// authenticated agent each kind of them may hold.
pub fn routes(
    ingest: Arc<Ingest>,
    health: Health,
    bystanders: usize,
) -> Result<Routes, tonic_reflection::server::Error> {
    let mut routes = Routes::builder();
    let stop = ingest.stop.clone();
    routes.add_service(ingest::service(ingest));
    routes.add_service(health::service(health, bystanders, stop));
    reflection::add_to(&mut routes)?;
    Ok(routes
        .routes()
        .into_axum_router()
        .layer(from_fn(reflection::bounded))
        .layer(from_fn(edge::single))
        .layer(from_fn(edge::translated))
        .into())
}
