//! Metrics in the Prometheus format. Those of the front are in its own crate.

mod export;
mod exposition;
mod fleet;
mod metrics;
mod pipeline;
mod process;

pub use export::ExportMetrics;
pub use exposition::Exposition;
pub use fleet::FleetMetrics;
pub use metrics::{Metrics, SessionMetrics};
pub use pipeline::PipelineMetrics;
pub use process::ProcessUse;
