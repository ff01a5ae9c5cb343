//! Reads variables one by one, and collects all problems.

use std::{ffi::OsString, fmt::Display};

use super::{Lookup, Problem, Variable, variables::Fallback};

pub(super) struct Reader<'a> {
    pub lookup: Lookup<'a>,
    pub problems: Vec<Problem>,
}

type Parse<T> = fn(&str) -> Result<T, String>;

impl Reader<'_> {
    /// A variable that always has a value: a set one, or its default.
    pub(super) fn value<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<T> {
        let fallback = Variable::named(name).map(|variable| variable.fallback);
        match (self.text(name)?, fallback) {
            (Some(text), _) => self.parsed(name, &text, parse),
            (None, Some(Fallback::Default(default))) => self.parsed(name, default, parse),
            (None, _) => self.problem(name, "is required and not set"),
        }
    }

    /// An optional variable: `Some(None)` if it is not set.
    pub(super) fn optional<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<Option<T>> {
        match self.text(name)? {
            Some(text) => self.parsed(name, &text, parse).map(Some),
            None => Some(None),
        }
    }

    fn problem<T>(&mut self, variable: &'static str, message: impl Display) -> Option<T> {
        let message = message.to_string();
        self.problems.push(Problem { variable, message });
        None
    }

    /// The variable's text; an empty one counts as not set. `None` if it is not UTF-8, which is a problem.
    fn text(&mut self, name: &'static str) -> Option<Option<String>> {
        match (self.lookup)(name).map(OsString::into_string) {
            None => Some(None),
            Some(Ok(text)) => Some(Some(text).filter(|text| !text.is_empty())),
            Some(Err(_)) => self.problem(name, "is not valid UTF-8"),
        }
    }

    fn parsed<T>(&mut self, name: &'static str, text: &str, parse: Parse<T>) -> Option<T> {
        let secret = Variable::named(name).is_none_or(|variable| variable.secret);
        match parse(text) {
            Ok(value) => Some(value),
            Err(reason) if secret => self.problem(name, reason),
            Err(reason) => self.problem(name, format!("{} {reason}", shown(text))),
        }
    }
}

/// A value for an error message: quoted, escaped, and cut if it is long.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
