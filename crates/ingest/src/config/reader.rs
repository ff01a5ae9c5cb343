//! Reads variables one by one and gathers what is wrong with them.

use std::{ffi::OsString, path::PathBuf};

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

    /// A variable that always has a value: its own, or its default.
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

    /// A variable that may be left out: `Some(None)` when it was.
    pub(super) fn optional<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<Option<T>> {
        match self.text(name)? {
            Some(text) => self.parsed(name, &text, parse).map(Some),
            None => Some(None),
        }
    }

    /// The pair that two variables name. Either may be at fault, or their not fitting together.
    pub(super) fn tls_pair(
        &mut self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Option<TlsPair> {
        match TlsPair::load(&certificate?, &key?) {
            Ok(pair) => Some(pair),
            Err(errors) => {
                for error in errors {
                    self.problem(error.variable(), error.to_string());
                }
                None
            }
        }
    }

    pub(super) fn client_ca(&mut self, name: &'static str) -> Option<Option<ClientCa>> {
        let Some(path) = self.text(name)? else {
            return Some(None);
        };
        match ClientCa::load(path.as_ref()) {
            Ok(ca) => Some(Some(ca)),
            Err(error) => {
                self.problem(name, error.to_string());
                None
            }
        }
    }

    /// The signing key's file may be missing: then it is made later. If it is there it must be good.
    pub(super) fn key_file(&mut self, name: &'static str) -> Option<PathBuf> {
        let path = self.value(name, super::parse::path)?;
        match signing::check(&path) {
            Ok(()) => Some(path),
            Err(error) => {
                self.problem(name, error.to_string());
                None
            }
        }
    }

    /// Set but empty counts as not set. `None`: it is not UTF-8, which is a problem.
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
        match parse(text) {
            Ok(value) => Some(value),
            Err(reason) => {
                let secret = Variable::named(name).is_none_or(|variable| variable.secret);
                self.problem(
                    name,
                    if secret {
                        reason
                    } else {
                        format!("{} {reason}", shown(text))
                    },
                );
                None
            }
        }
    }
}

/// A value as a person may see it: quoted, escaped, and cut where it is long.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
