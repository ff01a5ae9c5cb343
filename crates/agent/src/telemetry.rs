//! Log lines on standard error.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, OnceLock},
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Registry,
    filter::Targets,
    fmt::{
        self,
        writer::{BoxMakeWriter, MakeWriterExt},
    },
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use crate::config::{Log, LogFormat};

/// The filter of the lines, and the level of this machine's own settings.
static LEVEL: OnceLock<(reload::Handle<Targets, Registry>, LevelFilter)> = OnceLock::new();

/// Until further notice; `None`: the machine's own level.
pub fn set_level(level: Option<LevelFilter>) {
    if let Some((filter, own)) = LEVEL.get() {
        drop(filter.reload(targets(level.unwrap_or(*own)))); // It fails only without a subscriber.
    }
}

fn targets(level: LevelFilter) -> Targets {
    Targets::new()
        .with_target("svc_agent", level)
        .with_default(level.min(LevelFilter::WARN))
}

/// The commands that log call this once. Libraries log warnings and errors only. A version on trial also writes to a file, whose
/// end says what went wrong if it is refused.
pub fn init(log: Log, trial: Option<&Path>) {
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let writer = match trial.and_then(Tail::open) {
        Some(tail) => {
            panics_are_logged();
            BoxMakeWriter::new(io::stderr.and(Arc::new(tail)))
        }
        None => BoxMakeWriter::new(io::stderr),
    };
    let lines = fmt::layer().with_writer(writer).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    let set = match log.format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry
            .with(lines.with_ansi(io::stderr().is_terminal()))
            .try_init(),
    };
    // A second call, as in tests, has no effect.
    if set.is_ok() {
        drop(LEVEL.set((handle, log.level)));
    }
}

/// The newest lines of the log, in a file of bounded size.
#[derive(Debug)]
struct Tail(File);

/// A file that reaches this size starts over.
const LONGEST: u64 = 32 * 1024;

impl Tail {
    fn open(path: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).mode(0o600).open(path);
        opened.map(Self).ok()
    }
}

impl Write for &Tail {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.metadata()?.len() > LONGEST {
            self.0.set_len(0)?;
        }
        (&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.0).flush()
    }
}

/// Besides the message on standard error, which the file would not have.
fn panics_are_logged() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "the agent panicked");
        default(panic);
    }));
}
