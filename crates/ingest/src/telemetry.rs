//! Log lines, and metrics in the Prometheus format.

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

use std::{fs::File, io, sync::Mutex};

use tracing_subscriber::{EnvFilter, fmt, fmt::MakeWriter};

pub use export::ExportMetrics;
pub use exposition::Exposition;
pub use fleet::FleetMetrics;
pub use labels::{ReasonName, Variant};
pub use metrics::{Handshake, ListenerMetrics, Method, Metrics, Outcome, SessionMetrics};
pub use pipeline::PipelineMetrics;
pub use process::ProcessUse;

/// h2 logs warnings about the behaviour of single clients, some of them for every frame: a client could fill our log. A
/// filter in INGEST_LOG that names h2 overrides this.
const H2_FILTER: &str = "h2=error";

/// The form of the log.
#[derive(Clone, Debug)]
pub struct Log {
    pub filter: String,
    pub json: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            filter: "info".into(),
            json: false,
        }
    }
}

/// Sends log lines to standard error. The commands that log call it once.
pub fn init(log: &Log) {
    let ansi = io::IsTerminal::is_terminal(&io::stderr());
    init_to(log, io::stderr, ansi);
}

/// Sends log lines to a file, for a command that uses the terminal for its view.
pub fn init_file(log: &Log, file: File) {
    init_to(log, Mutex::new(file), false);
}

fn init_to(log: &Log, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, ansi: bool) {
    let filter = EnvFilter::try_new(format!("{H2_FILTER},{}", log.filter))
        .unwrap_or_else(|_| EnvFilter::new(format!("{H2_FILTER},info")));
    let lines = fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_target(false);
    let set = if log.json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_ansi(ansi).try_init()
    };
    drop(set); // A second call, as tests make it, changes nothing.
}
