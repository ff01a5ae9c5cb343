//! Reads variables one by one, and collects all problems.

use std::{ffi::OsString, fmt::Display};

use super::{Fallback, Problem, Problems, Variable};

/// Finds the value of a variable by its name.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

type Parse<T> = fn(&str) -> Result<T, String>;

/// Its methods return `None` in place of a value that cannot be read, after they have noted a problem.
pub struct Reader<'a> {
    variables: &'static [Variable],
    lookup: Lookup<'a>,
    problems: Vec<Problem>,
}

/// Reads a section of the settings, or returns all problems of its variables.
pub fn read<T>(
    variables: &'static [Variable],
    lookup: Lookup<'_>,
    collect: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Problems> {
    let mut reader = Reader {
        variables,
        lookup,
        problems: Vec::new(),
    };
    match collect(&mut reader) {
        Some(value) if reader.problems.is_empty() => Ok(value),
        _ => Err(Problems(reader.problems)),
    }
}

impl Reader<'_> {
    /// A variable that always has a value: a set one, or its default. Where the table has neither, the
    /// empty text is parsed.
    pub fn value<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<T> {
        let fallback = self.variable(name).map(|variable| variable.fallback);
        match (self.text(name)?, fallback) {
            (Some(text), _) => self.parsed(name, &text, parse),
            (None, Some(Fallback::Default(default))) => self.parsed(name, default, parse),
            (None, Some(Fallback::Unset(_))) => self.parsed(name, "", parse),
            (None, _) => self.problem(name, "is required and not set"),
        }
    }

    /// An optional variable: `Some(None)` if it is not set.
    pub fn optional<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<Option<T>> {
        match self.text(name)? {
            Some(text) => self.parsed(name, &text, parse).map(Some),
            None => Some(None),
        }
    }

    /// The variable's text; an empty one counts as not set. `None` if it is not UTF-8, which is a problem.
    pub fn text(&mut self, name: &'static str) -> Option<Option<String>> {
        match (self.lookup)(name).map(OsString::into_string) {
            None => Some(None),
            Some(Ok(text)) => Some(Some(text).filter(|text| !text.is_empty())),
            Some(Err(_)) => self.problem(name, "is not valid UTF-8"),
        }
    }

    /// Notes a problem.
    pub fn problem<T>(&mut self, variable: &'static str, message: impl Display) -> Option<T> {
        let message = message.to_string();
        self.problems.push(Problem { variable, message });
        None
    }

    /// The value of `result`, or its error as a problem.
    pub fn or_problem<T>(
        &mut self,
        name: &'static str,
        result: Result<T, impl Display>,
    ) -> Option<T> {
        result.map_or_else(|error| self.problem(name, error), Some)
    }

    fn parsed<T>(&mut self, name: &'static str, text: &str, parse: Parse<T>) -> Option<T> {
        let secret = self.variable(name).is_none_or(|variable| variable.secret);
        let parsed = parse(text).map_err(|reason| match secret {
            true => reason,
            false => format!("{} {reason}", shown(text)),
        });
        self.or_problem(name, parsed)
    }

    fn variable(&self, name: &str) -> Option<&'static Variable> {
        let mut variables = self.variables.iter();
        variables.find(|variable| variable.name == name)
    }
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("problems", &self.problems)
            .finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse;

    crate::variables! {
        "PORT", Default("80"), "a port";
        "KEY", Required, secret "a key";
        "LIMIT", Unset("none"), "a limit";
    }

    fn port_and_limit(set: &[(&str, &str)]) -> Result<(u16, Option<bool>), String> {
        let lookup = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let section = read(VARIABLES, &lookup, |reader| {
            let port = reader.value("PORT", parse::port);
            let key = reader.value("KEY", parse::boolean);
            let limit = reader.optional("LIMIT", parse::boolean);
            key?;
            Some((port?, limit?))
        });
        section.map_err(|problems| problems.to_string())
    }

    #[test]
    fn defaults_apply_to_unset_and_empty_variables() {
        assert_eq!(
            port_and_limit(&[("KEY", "true"), ("PORT", "")]),
            Ok((80, None))
        );
    }

    #[test]
    fn all_problems_are_reported_and_secrets_are_not() {
        let report = port_and_limit(&[("PORT", "x"), ("KEY", "geheim"), ("LIMIT", "maybe")]);
        let report = report.unwrap_err();
        assert_eq!(report.lines().count(), 3, "{report}");
        assert!(
            report.contains("\"maybe\"") && !report.contains("geheim"),
            "{report}"
        );
    }
}
