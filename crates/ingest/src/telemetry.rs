//! What the process tells of itself: log lines, and metrics in the Prometheus format.

mod metrics;
mod pipeline;
mod process;

use std::{fs::File, io, sync::Mutex};

use tracing_subscriber::{EnvFilter, fmt, fmt::MakeWriter};

pub use metrics::{Handshake, ListenerMetrics, Metrics, SessionMetrics};
pub use pipeline::PipelineMetrics;

/// h2 warns of what single clients do, some of it once a frame: a client could
/// write our log full. A filter that names h2 goes first.
const QUIET: &str = "h2=error";

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

/// Sends log lines to standard error. Called once, by the commands that log.
pub fn init(log: &Log) {
    let ansi = io::IsTerminal::is_terminal(&io::stderr());
    init_to(log, io::stderr, ansi);
}

/// The same into a file, where the terminal shows something else.
pub fn init_file(log: &Log, file: File) {
    init_to(log, Mutex::new(file), false);
}

fn init_to(log: &Log, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, ansi: bool) {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.filter))
        .unwrap_or_else(|_| EnvFilter::new(format!("{QUIET},info")));
    let lines = fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_target(false);
    let set = if log.json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_ansi(ansi).try_init()
    };
    drop(set); // A second call, as in tests, changes nothing.
}
