//! Metrics in the Prometheus format. Those of the front and the pipeline are in their own crates.

mod fleet;
mod metrics;
mod process;

pub use fleet::FleetMetrics;
pub use metrics::{Metrics, SessionMetrics};
pub use process::ProcessUse;
