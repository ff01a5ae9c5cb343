//! Metrics in the Prometheus format.

mod export;
mod exposition;
mod fleet;
mod metrics;
mod pipeline;
mod process;

pub use export::ExportMetrics;
pub use exposition::Exposition;
pub use fleet::FleetMetrics;
pub use metrics::{Handshake, ListenerMetrics, Method, Metrics, Outcome, SessionMetrics};
pub use pipeline::PipelineMetrics;
pub use process::ProcessUse;
pub use svc_common::metrics::{ReasonName, Variant};
