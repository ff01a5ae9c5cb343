//! Log lines on standard error.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{Log, LogFormat};

/// The commands that log call this once. Libraries log warnings and errors only.
pub fn init(log: Log) {
    let targets = Targets::new()
        .with_target("svc_agent", log.level)
        .with_default(log.level.min(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(targets);
    let set = match log.format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry
            .with(lines.with_ansi(io::stderr().is_terminal()))
            .try_init(),
    };
    drop(set); // A second call, as in tests, has no effect.
}
