//! Reads variables one by one, and collects all problems.

use std::{ffi::OsString, fmt::Display, path::PathBuf};

use super::{Problem, Problems, Variable, variables::Fallback};
use crate::{
    listener::{ClientCa, TlsPair},
    signing,
};

pub(super) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    problems: Vec<Problem>,
}

type Parse<T> = fn(&str) -> Result<T, String>;

impl<'a> Reader<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self {
            lookup,
            problems: Vec::new(),
        }
    }

    pub(super) fn finish<T>(self, read: Option<T>) -> Result<T, Problems> {
        match read {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => Err(Problems(self.problems)),
        }
    }

    pub(super) fn problem(&mut self, variable: &'static str, message: impl Into<String>) {
        self.problems.push(Problem {
            variable,
            message: message.into(),
        });
    }

    /// A variable that always has a value: a set one, or its default.
    pub(super) fn value<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<T> {
        let fallback = Variable::named(name).map(|variable| variable.fallback);
        match (self.text(name)?, fallback) {
            (Some(text), _) => self.parsed(name, &text, parse),
            (None, Some(Fallback::Default(default))) => self.parsed(name, default, parse),
            (None, Some(Fallback::Unset(_))) => self.parsed(name, "", parse),
            (None, _) => {
                self.problem(name, "is required and not set");
                None
            }
        }
    }

    /// An optional variable: `Some(None)` if it is not set.
    pub(super) fn optional<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<Option<T>> {
        match self.text(name)? {
            Some(text) => self.parsed(name, &text, parse).map(Some),
            None => Some(None),
        }
    }

    /// The certificate and the key that two variables name. Either may be wrong, or they do not belong together.
    pub(super) fn tls_pair(
        &mut self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Option<TlsPair> {
        let loaded = TlsPair::load(&certificate?, &key?);
        loaded
            .map_err(|errors| {
                for error in errors {
                    self.problem(error.variable(), error.to_string());
                }
            })
            .ok()
    }

    pub(super) fn client_ca(&mut self, name: &'static str) -> Option<Option<ClientCa>> {
        let Some(path) = self.text(name)? else {
            return Some(None);
        };
        let loaded = ClientCa::load(path.as_ref());
        self.or_problem(name, loaded).map(Some)
    }

    /// The path of the signing key. The file may be missing, because the first start creates it; otherwise it must be
    /// valid.
    pub(super) fn key_file(&mut self, name: &'static str) -> Option<PathBuf> {
        let path = self.value(name, super::parse::path)?;
        let checked = signing::check(&path);
        self.or_problem(name, checked).map(|()| path)
    }

    fn or_problem<T>(&mut self, name: &'static str, result: Result<T, impl Display>) -> Option<T> {
        result
            .map_err(|error| self.problem(name, error.to_string()))
            .ok()
    }

    /// The variable's text; an empty one counts as not set. `None` if it is not UTF-8, which is a problem.
    fn text(&mut self, name: &'static str) -> Option<Option<String>> {
        match (self.lookup)(name).map(OsString::into_string) {
            None => Some(None),
            Some(Ok(text)) => Some(Some(text).filter(|text| !text.is_empty())),
            Some(Err(_)) => {
                self.problem(name, "is not valid UTF-8");
                None
            }
        }
    }

    fn parsed<T>(&mut self, name: &'static str, text: &str, parse: Parse<T>) -> Option<T> {
        let secret = Variable::named(name).is_none_or(|variable| variable.secret);
        let parsed = parse(text).map_err(|reason| match secret {
            true => reason,
            false => format!("{} {reason}", shown(text)),
        });
        self.or_problem(name, parsed)
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
