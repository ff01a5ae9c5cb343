//! How commands print: tables for people, JSON for programs.
//!
//! Much of what is shown was said by agents, which may be anybody's: in tables
//! nothing of it reaches the terminal as a control sequence.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use svc_store::Page;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

/// How a column meets a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub enum Fit {
    Whole,
    Wraps,
}

pub type Column = (&'static str, Fit);

/// Writes to standard output; a reader that has gone away, as `head` does, is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    is_read(text).map(drop)
}

/// `print`, and whether anybody still reads.
pub fn is_read(text: &str) -> anyhow::Result<bool> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&json(value)?)
}

pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// A list, with a word to the reader where it is empty or cut.
pub fn list<T: Serialize>(
    output: Output,
    page: &Page<T>,
    table: impl FnOnce(&[T]) -> String,
    empty: &str,
) -> anyhow::Result<String> {
    let shown = page.rows.len();
    let cut = format!("only the first {shown} are shown: choose fewer, or raise --limit");
    match output {
        Output::Json if page.cut => eprintln!("svc-ingest: {cut}"),
        Output::Table if page.rows.is_empty() => return Ok(empty.to_owned()),
        Output::Table if page.cut => return Ok(format!("{}\n\n{cut}", table(&page.rows))),
        Output::Table => return Ok(table(&page.rows)),
        Output::Json => {}
    }
    json(&page.rows)
}

/// Columns without borders, as wide as the terminal at most; as wide as needed in a pipe.
pub fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(columns.iter().map(|(name, _)| *name));
    for row in rows {
        table.add_row(row.iter().map(|cell| harmless(cell)));
    }
    for ((_, fit), column) in columns.iter().zip(table.column_iter_mut()) {
        column.set_padding((0, 2));
        if matches!(fit, Fit::Whole) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// Two columns, aligned: for a handful of facts about one thing.
pub fn facts(rows: &[(&str, String)]) -> String {
    let width = rows
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let lines: Vec<String> = rows
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {}", harmless(value)))
        .collect();
    lines.join("\n")
}

/// Without what could move a terminal's cursor or turn text around.
pub fn harmless(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(harmful, "\u{fffd}")
}

/// What is not known is a dash.
pub fn or_dash(text: impl Into<Option<String>>) -> String {
    let text = text.into().filter(|text| !text.is_empty());
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_an_agent_says_moves_the_cursor() {
        let said = "web\u{1b}[2J\r\n\u{202e}1".to_owned();
        let shown = table(&[("HOST", Fit::Wraps)], [vec![said.clone()]]);
        assert_eq!(shown.lines().count(), 2, "{shown:?}");
        for shown in [shown, facts(&[("host", said)])] {
            assert!(!shown.contains(['\u{1b}', '\r', '\u{202e}']), "{shown:?}");
        }
    }
}
