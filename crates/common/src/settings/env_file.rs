//! The settings of an installation: a file of variables, and the drop-ins beside it.
//!
//! systemd reads the same files (`EnvironmentFile=`), and an administrator may source them in a shell. Both, and this
//! module, must find the same values. [`parse`] follows systemd's grammar; [`assignment`] writes only forms that systemd
//! and a shell read alike.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Far above the size of any list of settings.
const MAX_FILE_SIZE: u64 = 256 * 1024;

/// The variables of a file and of its drop-ins (`<file>.d/*.env`, in the order of their names; the last one wins).
#[derive(Debug, Default)]
pub struct EnvFile {
    values: BTreeMap<String, String>,
    /// Why a file could not be read, if one could not.
    unreadable: Option<String>,
}

impl EnvFile {
    /// A file that does not exist counts as empty.
    pub fn read(path: &Path) -> Self {
        let mut found = Self::default();
        for file in std::iter::once(path.to_owned()).chain(drop_ins(path)) {
            match read_text(&file) {
                Ok(text) => found.values.extend(parse(&text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let reason = format!("{} cannot be read: {error}", file.display());
                    found.unreadable.get_or_insert(reason);
                }
            }
        }
        found
    }

    /// The value of a variable; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.values.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    pub fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }
}

fn drop_ins(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path.with_added_extension("d"));
    let paths = entries.into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = paths
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "env"))
        .collect();
    files.sort();
    files
}

pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?.take(MAX_FILE_SIZE + 1);
    io::BufReader::new(file).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE_SIZE {
        true => Err(io::Error::other("it is too large")),
        false => Ok(text),
    }
}

/// A line that sets `name` to `value`. `None` if no form exists that systemd and a shell read alike.
///
/// Both take a value without special characters as it is, and everything between single quotes. Only within double quotes
/// do both know an escape for a quote, and there the same four characters need a backslash.
pub fn assignment(name: &str, value: &str) -> Option<String> {
    if value.chars().any(char::is_control) {
        return None;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    let quoted = if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else if !value.contains('\'') {
        format!("'{value}'")
    } else {
        let escaped = value.chars().flat_map(|c| {
            let escape = "\"\\`$".contains(c).then_some('\\');
            escape.into_iter().chain([c])
        });
        format!("\"{}\"", escaped.collect::<String>())
    };
    Some(format!("{name}={quoted}"))
}

/// The assignments of a file. Lines that are none are ignored, as systemd does.
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut rest = text;
    let mut found = Vec::new();
    while !rest.is_empty() {
        rest = rest.trim_start();
        if rest.starts_with(['#', ';']) {
            rest = after_line(rest);
            continue;
        }
        let line = rest.lines().next().unwrap_or_default();
        let Some((name, _)) = line.split_once('=') else {
            rest = after_line(rest);
            continue;
        };
        let (value, after) = take_value(&rest[name.len() + 1..]);
        rest = after;
        let name = name.trim_end();
        if is_name(name) {
            found.push((name.to_owned(), value));
        }
    }
    found
}

fn after_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, after)| after)
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    let start = |c: char| c.is_ascii_alphabetic() || c == '_';
    characters.next().is_some_and(start) && characters.all(|c| start(c) || c.is_ascii_digit())
}

/// Reads one value, and returns what follows its line.
///
/// Quotes count only where a value, or a part of it, begins: `a'b'` is a value with two quotes, and `'a''b'` is `ab`.
fn take_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r']);
        if let Some(quoted) = rest.strip_prefix('\'') {
            let (inner, after) = quoted.split_once('\'').unwrap_or((quoted, ""));
            value.push_str(inner);
            rest = after;
        } else if let Some(quoted) = rest.strip_prefix('"') {
            rest = take_double_quoted(quoted, &mut value);
        } else {
            return (value + &bare(&mut rest), rest);
        }
    }
}

fn take_double_quoted<'a>(text: &'a str, value: &mut String) -> &'a str {
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return &text[at + 1..],
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\' | '`' | '$'))) => value.push(escaped),
                Some((_, '\n')) | None => {}
                Some((_, other)) => value.extend(['\\', other]),
            },
            c => value.push(c),
        }
    }
    ""
}

/// An unquoted value: to the end of the line, without the white space there. A backslash escapes one character, or
/// continues the line.
fn bare(rest: &mut &str) -> String {
    let mut value = String::new();
    let mut kept = 0;
    let mut characters = rest.char_indices();
    let mut end = rest.len();
    while let Some((at, c)) = characters.next() {
        match c {
            '\n' => {
                end = at + 1;
                break;
            }
            '\\' => {
                if let Some((_, escaped)) = characters.next().filter(|(_, c)| *c != '\n') {
                    value.push(escaped);
                    kept = value.len();
                }
            }
            c => {
                value.push(c);
                if !c.is_whitespace() {
                    kept = value.len();
                }
            }
        }
    }
    *rest = &rest[end..];
    value.truncate(kept);
    value
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn pairs(found: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        found.iter().map(owned).collect()
    }

    #[test]
    fn a_file_is_read_as_systemd_reads_it() {
        let text = "# a comment\n; another\n\nA=1\n  B = two words  \nC='x & y'\nD=\"a\\\"b\\$c\\d\"\nnonsense\n\
                    9=bad\nE=a\\ b\\\nc\nF=it's\nG='a''b'\nH=\nDATABASE_URL=postgres://u@h/d?a=1&b=2\r\nI=last";
        let wanted = pairs(&[
            ("A", "1"),
            ("B", "two words"),
            ("C", "x & y"),
            ("D", "a\"b$c\\d"),
            ("E", "a bc"),
            ("F", "it's"),
            ("G", "ab"),
            ("H", ""),
            ("DATABASE_URL", "postgres://u@h/d?a=1&b=2"),
            ("I", "last"),
        ]);
        assert_eq!(parse(text), wanted);
        assert_eq!(parse("A='open\nB=1"), pairs(&[("A", "open\nB=1")]));
    }

    #[test]
    fn a_value_that_no_form_can_hold_is_refused() {
        assert_eq!(assignment("A", "two\nlines"), None);
        assert_eq!(assignment("A", "\0"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read_back_by_us_and_by_a_shell(value in "[ -~é€]{0,40}") {
            let line = assignment("VALUE", &value).unwrap();
            prop_assert_eq!(parse(&line), pairs(&[("VALUE", &value)]));
            let script = format!("{line}\nprintf %s \"$VALUE\"");
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            prop_assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }
    }
}
