//! Output of the commands: aligned text for people, JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use jiff::Timestamp;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

#[derive(Debug, clap::Args)]
pub(super) struct OutputArgs {
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Writes to standard output. A reader that closed the pipe, such as `head`, is no error.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Two aligned columns. Control characters are replaced, because some values come from the
/// service.
pub(super) fn facts(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or_default();
    let lines = rows.iter().map(|(name, value)| {
        let value = value.replace(|c: char| c.is_control(), "\u{fffd}");
        format!("{name:<width$}  {value}").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `12.3 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A time and its distance from now.
pub(super) fn when(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs();
    let (ago, word) = match seconds {
        0.. => (seconds, "ago"),
        _ => (-seconds, "from now"),
    };
    let length = match ago {
        0..120 => format!("{ago} s"),
        120..7200 => format!("{} min", ago / 60),
        7200..172_800 => format!("{} h", ago / 3600),
        _ => format!("{} d", ago / 86_400),
    };
    let second = at.round(jiff::Unit::Second).unwrap_or(at);
    format!("{second} ({length} {word})")
}
