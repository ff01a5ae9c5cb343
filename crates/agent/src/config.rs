//! Configuration: flags, environment and file, read once into one plain struct.
//!
//! All problems are reported together, each under the name by which it was set.
//! Secrets never appear in one. Files that a setting names are read when they are
//! needed: the token's may be gone once the machine is enrolled, and certificates
//! are renewed under a running agent.

mod parse;
mod settings;
mod sources;

use std::{ffi::OsString, fmt, path::PathBuf};

use secrecy::SecretString;
use tracing::level_filters::LevelFilter;

use crate::{spool::Limits, wire::Address};
pub use settings::{SETTINGS, Setting};
pub use sources::{DEFAULT_FILE, FILE_VARIABLE, Flags};
use sources::{Found, Sources};

#[derive(Clone, Debug)]
pub struct Config {
    pub addresses: Vec<Address>,
    pub ca_cert_file: Option<PathBuf>,
    pub token: Token,
    pub data_dir: PathBuf,
    pub client_pair: Option<ClientPair>,
    pub spool: Limits,
    pub log: Log,
}

/// Where the enrolment token is to be found.
#[derive(Clone, Debug)]
pub enum Token {
    None,
    Given(SecretString),
    File(PathBuf),
}

/// A certificate of the site's own PKI, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LevelFilter,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: LevelFilter::INFO,
            format: LogFormat::Text,
        }
    }
}

/// One thing to mend, under the name by which it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub name: String,
    pub message: String,
}

impl Problem {
    fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

/// At least one problem; the process that shows them exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

impl Config {
    pub fn from_env(flags: &Flags) -> Result<Self, Problems> {
        Self::read(flags, &|name| std::env::var_os(name))
    }

    pub fn read(
        flags: &Flags,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let sources = Sources::open(flags, environment, &mut problems);
        let mut reader = Reader { sources, problems };
        let config = Self::collect(&mut reader);
        match config {
            Some(config) if reader.problems.is_empty() => Ok(config),
            _ => Err(Problems(reader.problems)),
        }
    }

    /// `None` only where the reader has noted a problem.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let addresses = reader.value("ingest_address", parse::addresses);
        let ca_cert_file = reader.value("ca_cert_file", parse::optional_path);
        let token = reader.token();
        let data_dir = reader.value("data_dir", parse::path);
        let client_pair = reader.client_pair();
        let bytes = reader.value("spool_size", parse::size);
        let age = reader.value("spool_age", parse::age);
        let level = reader.value("log", parse::level);
        let format = reader.value("log_format", parse::format);
        Some(Self {
            addresses: addresses?,
            ca_cert_file: ca_cert_file?,
            token: token?,
            data_dir: data_dir?,
            client_pair: client_pair?,
            spool: Limits {
                bytes: bytes?,
                age: age?,
            },
            log: Log {
                level: level?,
                format: format?,
            },
        })
    }
}

/// Where the agent keeps its things, for the commands that need nothing else.
pub fn data_dir(flags: &Flags) -> Result<PathBuf, Problems> {
    let environment = |name: &str| std::env::var_os(name);
    let mut problems = Vec::new();
    let sources = Sources::open(flags, &environment, &mut problems);
    let mut reader = Reader { sources, problems };
    let found = reader.value("data_dir", parse::path);
    found.ok_or(Problems(reader.problems))
}

struct Reader<'a> {
    sources: Sources<'a>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    /// A setting's value, or its default's; `None` is a problem that was noted.
    fn value<T>(&mut self, name: &'static str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let setting = Setting::named(name)?;
        let found = match (self.find(setting)?, setting.default) {
            (Some(found), _) => found,
            (None, Some(default)) => Found {
                text: default.into(),
                name: name.into(),
            },
            (None, None) => {
                let variable = setting.variable();
                let message = format!("is required: set it in {DEFAULT_FILE}, or {variable}");
                self.problems.push(Problem::new(name, message));
                return None;
            }
        };
        match parse(found.text.trim()) {
            Ok(value) => Some(value),
            Err(reason) => {
                let message = match setting.secret {
                    true => reason,
                    false => format!("{} {reason}", shown(&found.text)),
                };
                self.problems.push(Problem::new(found.name, message));
                None
            }
        }
    }

    fn find(&mut self, setting: &Setting) -> Option<Option<Found>> {
        self.sources
            .find(setting)
            .map_err(|problem| self.problems.push(problem))
            .ok()
    }

    fn token(&mut self) -> Option<Token> {
        let given = self.value("enrolment_token", parse::token);
        let file = self.value("enrolment_token_file", parse::optional_path);
        match (given?, file?) {
            (None, None) => Some(Token::None),
            (Some(token), None) => Some(Token::Given(token)),
            (None, Some(file)) => Some(Token::File(file)),
            (Some(_), Some(_)) => {
                let message = "is set beside enrolment_token_file: leave one of them out";
                self.problems.push(Problem::new("enrolment_token", message));
                None
            }
        }
    }

    fn client_pair(&mut self) -> Option<Option<ClientPair>> {
        let certificate = self.value("client_cert_file", parse::optional_path);
        let key = self.value("client_key_file", parse::optional_path);
        match (certificate?, key?) {
            (None, None) => Some(None),
            (Some(certificate), Some(key)) => Some(Some(ClientPair { certificate, key })),
            (certificate, _) => {
                let missing = match certificate {
                    Some(_) => "client_key_file",
                    None => "client_cert_file",
                };
                let message = "is missing: a client certificate and its key go together";
                self.problems.push(Problem::new(missing, message));
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
