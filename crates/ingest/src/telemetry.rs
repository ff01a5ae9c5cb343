//! Metrics in the Prometheus format.

/// Declares a struct of metrics, its `Default` and its `register`. A row is a field with its type, its first value
/// where the type has no default, its name, and its help.
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        pub struct $struct:ident {
            $($(#[$doc:meta])* $vis:vis $field:ident: $type:ty $(= $new:expr)?, $name:literal, $help:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $struct {
            $($(#[$doc])* $vis $field: $type,)+
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($field: metrics!(@new $($new)?),)+ }
            }
        }

        impl $struct {
            pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
                $(registry.register($name, $help, self.$field.clone());)+
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
}

mod export;
mod exposition;
mod fleet;
mod labels;
mod metrics;
mod pipeline;
mod process;

pub use export::ExportMetrics;
pub use exposition::Exposition;
pub use fleet::FleetMetrics;
pub use labels::{ReasonName, Variant};
pub use metrics::{Handshake, ListenerMetrics, Method, Metrics, Outcome, SessionMetrics};
pub use pipeline::PipelineMetrics;
pub use process::ProcessUse;
