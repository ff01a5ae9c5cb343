//! Reads variables one by one, and collects all problems.

use std::{ffi::OsString, fmt::Display, path::PathBuf};

use super::{Lookup, Problem, Variable, variables::Fallback};
use crate::{
    listener::{ClientCa, TlsPair},
    signing::{self, PublicKey},
};

pub(super) struct Reader<'a> {
    pub lookup: Lookup<'a>,
    pub problems: Vec<Problem>,
}

type Parse<T> = fn(&str) -> Result<T, String>;

impl Reader<'_> {
    /// Notes a problem. Returns `None`, in place of the value that cannot be read.
    pub(super) fn problem<T>(
        &mut self,
        variable: &'static str,
        message: impl Display,
    ) -> Option<T> {
        let message = message.to_string();
        self.problems.push(Problem { variable, message });
        None
    }

    /// A variable that always has a value: a set one, or its default.
    pub(super) fn value<T>(&mut self, name: &'static str, parse: Parse<T>) -> Option<T> {
        let fallback = Variable::named(name).map(|variable| variable.fallback);
        match (self.text(name)?, fallback) {
            (Some(text), _) => self.parsed(name, &text, parse),
            (None, Some(Fallback::Default(default))) => self.parsed(name, default, parse),
            (None, Some(Fallback::Unset(_))) => self.parsed(name, "", parse),
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

    /// The certificate and the key that two variables name. Either may be wrong, or they do not belong together.
    pub(super) fn tls_pair(
        &mut self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Option<TlsPair> {
        match TlsPair::load(&certificate?, &key?) {
            Ok(pair) => Some(pair),
            Err(errors) => {
                for error in errors {
                    self.problem::<TlsPair>(error.variable(), error);
                }
                None
            }
        }
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

    /// The public keys in the files that a list of paths names.
    pub(super) fn extra_keys(&mut self, name: &'static str) -> Option<Vec<PublicKey>> {
        let paths = self.optional(name, super::parse::paths)?;
        let keys = paths.unwrap_or_default().into_iter().map(|path| {
            let read = signing::read_public(&path);
            self.or_problem(name, read)
        });
        keys.collect::<Vec<_>>().into_iter().collect()
    }

    fn or_problem<T>(&mut self, name: &'static str, result: Result<T, impl Display>) -> Option<T> {
        result.map_or_else(|error| self.problem(name, error), Some)
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
