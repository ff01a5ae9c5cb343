//! The form of the log, and where it goes.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use tracing_subscriber::{EnvFilter, fmt};

use crate::{
    settings::{Reader, parse::Parsed},
    text::{visible_colours, visible_json, visible_lines},
};

/// h2 and rustls log warnings about the behaviour of single clients, some of them for every frame: a client could fill our
/// log. A filter in the settings that names them overrides this.
const LIBRARIES: &str = "h2=error,rustls=error";

#[derive(Clone, Debug)]
pub struct Log {
    filter: String,
    json: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            filter: "info".into(),
            json: false,
        }
    }
}

impl Log {
    /// The variables' names are those of the filter and of the format.
    pub fn read(reader: &mut Reader<'_>, [filter, format]: [&'static str; 2]) -> Option<Self> {
        let filter = reader.value(filter, parse_filter);
        let json = reader.value(format, parse_json);
        Some(Self {
            filter: filter?,
            json: json?,
        })
    }

    /// Sends log lines to standard error. The commands that log call it once.
    pub fn start(&self) {
        let filter = EnvFilter::try_new(format!("{LIBRARIES},{}", self.filter))
            .unwrap_or_else(|_| EnvFilter::new(format!("{LIBRARIES},info")));
        let colours = io::stderr().is_terminal();
        let shown = Shown(match (self.json, colours) {
            (true, _) => visible_json,
            (false, true) => visible_colours,
            (false, false) => visible_lines,
        });
        let lines = fmt()
            .with_env_filter(filter)
            .with_writer(move || shown)
            .with_target(false);
        let set = if self.json {
            lines.json().flatten_event(true).try_init()
        } else {
            lines.with_ansi(colours).try_init()
        };
        drop(set); // A second call, as tests make it, changes nothing.
    }
}

/// Writes lines to standard error, with hidden characters by their numbers: much of a log comes from clients.
#[derive(Clone, Copy)]
struct Shown(fn(&str) -> Cow<'_, str>);

impl Write for Shown {
    /// A line is one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().write_all((self.0)(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn parse_filter(text: &str) -> Parsed<String> {
    EnvFilter::try_new(text)
        .map(|_| text.into())
        .map_err(|error| format!("is not a log filter: {error}"))
}

fn parse_json(text: &str) -> Parsed<bool> {
    match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err("is neither text nor json".into()),
    }
}
