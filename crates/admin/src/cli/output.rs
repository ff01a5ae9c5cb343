//! How commands print: tables for people, JSON for programs.
//!
//! Much of what is shown comes from agents, and anybody can run an agent. Hidden characters are therefore shown by their
//! numbers ([`svc_common::text`]), so that an agent cannot move the administrator's cursor or reorder the text.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;
use svc_common::text::{visible, visible_json, visible_lines};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// What a column does on a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub enum Fit {
    Whole,
    Wraps,
}

/// A column of a table of `T`: its heading, its fit, and the text of a cell.
pub type Column<T> = (&'static str, Fit, fn(&T) -> String);

impl Output {
    /// `value` as JSON, or `text` for people.
    pub fn render(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Json => {
                let json = serde_json::to_string_pretty(value)?;
                Ok(visible_json(&json).into_owned())
            }
            Self::Table => Ok(visible_lines(&text()).into_owned()),
        }
    }

    /// Prints what [`Output::render`] returns.
    pub fn print(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        print(&self.render(value, text)?)
    }
}

/// Writes to standard output. A reader that has closed the pipe, as `head` does, is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_while_read(text).map(drop)
}

/// Like [`print()`], and returns whether the reader is still there.
pub fn print_while_read(text: &str) -> anyhow::Result<bool> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Columns without borders: at most as wide as the terminal or as COLUMNS says, and in a pipe otherwise as wide as needed.
pub fn table<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let width = std::env::var("COLUMNS").ok();
    table_within(width.and_then(|width| width.parse().ok()), columns, rows)
}

fn table_within<T>(width: Option<u16>, columns: &[Column<T>], rows: &[T]) -> String {
    let mut table = Table::new();
    if let Some(width) = width {
        table.set_width(width);
    }
    // A terminal without a size, as containers and remote commands have, says 0.
    let arrangement = match table.width() {
        None | Some(0) => ContentArrangement::Disabled,
        Some(_) => ContentArrangement::Dynamic,
    };
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(arrangement)
        .set_header(columns.iter().map(|(heading, ..)| *heading));
    for row in rows {
        table.add_row(
            columns
                .iter()
                .map(|(.., cell)| visible(&cell(row)).into_owned()),
        );
    }
    for ((_, fit, _), column) in columns.iter().zip(table.column_iter_mut()) {
        column.set_padding((0, 2));
        if matches!(fit, Fit::Whole) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// Two aligned columns, for a few facts about one thing.
pub fn facts(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or_default();
    let line = |(name, value): &(&str, String)| format!("{name:<width$}  {}", visible(value));
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The characters of an id that tables show. They are enough to select the record.
pub fn short(id: impl std::fmt::Display) -> String {
    id.to_string().chars().take(8).collect()
}

/// The text, or a dash where there is none.
pub fn or_dash(text: impl Into<Option<String>>) -> String {
    let text = text.into().filter(|text| !text.is_empty());
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_at_most_as_wide_as_it_may_be() {
        let text = "one two three four five six seven".to_owned();
        let columns: [Column<String>; 1] = [("TEXT", Fit::Wraps, String::clone)];
        let widest = |width| {
            let table = table_within(width, &columns, std::slice::from_ref(&text));
            table.lines().map(str::len).max()
        };
        assert_eq!(widest(None), Some(text.len()));
        assert_eq!(widest(Some(0)), Some(text.len()));
        assert!(widest(Some(20)) <= Some(20));
    }

    #[test]
    fn text_from_an_agent_cannot_move_the_cursor() {
        let text = "web\u{1b}[2J\r\n\u{202e}1".to_owned();
        let shown = table(
            &[("HOST", Fit::Wraps, String::clone)],
            std::slice::from_ref(&text),
        );
        assert_eq!(shown.lines().count(), 2, "{shown:?}");
        let rendered = |output: Output| output.render(&text, || text.clone()).unwrap();
        assert_eq!(rendered(Output::Table), "web[U+001B][2J[U+000D]\n[U+202E]1");
        let json = rendered(Output::Json);
        assert!(json.is_ascii(), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        for shown in [shown, facts(&[("host", text)])] {
            assert!(
                shown.contains("web[U+001B][2J[U+000D][U+000A][U+202E]1"),
                "{shown:?}"
            );
        }
    }
}
