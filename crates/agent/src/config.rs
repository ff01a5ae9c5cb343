//! Configuration: flags, environment and file, read once into one plain struct.
//!
//! All problems are reported together, each with the name under which the value was set, and
//! never with a secret. Files that a setting names are read when they are needed: the token's
//! file may be deleted after the enrolment, and certificates are renewed while the agent runs.

mod parse;
mod problems;
mod settings;
mod sources;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use secrecy::SecretString;
use tracing::level_filters::LevelFilter;

use crate::{
    spool::Limits,
    wire::{Address, Exceptions, Names, Proxy, Route},
};
pub use parse::PINNABLE;
pub use problems::{Problem, Problems};
pub use settings::{SETTINGS, Setting};
use sources::Sources;
pub use sources::{DEFAULT_FILE, FILE_VARIABLE, Flags, is_open_to_all, read_token, token_in};

#[derive(Clone, Debug)]
pub struct Config {
    pub addresses: Vec<Address>,
    pub ca_cert_file: Option<PathBuf>,
    /// Whether trust anchors that the service announces are taken.
    pub trust_updates: bool,
    pub token: Token,
    pub data_dir: PathBuf,
    pub client_pair: Option<ClientPair>,
    pub proxy: Option<Proxy>,
    /// The hosts that are reached without the proxy.
    pub no_proxy: Exceptions,
    pub spool: Limits,
    pub log: Log,
    /// The age at which the agent changes its key by itself.
    pub key_age: Option<Duration>,
    pub update: UpdateMode,
    /// The operators' keys of releases.
    pub update_keys: PathBuf,
    /// How long a new version must work until it is approved.
    pub update_trial: Duration,
    /// The fields of the service's settings that this machine decides itself.
    pub pinned: Vec<&'static str>,
    /// It never moves to another cell.
    pub pinned_cell: bool,
    /// What does not keep the agent from running, but should be fixed.
    pub warnings: Vec<Problem>,
}

/// The source of the enrolment token. Files are read for every registration, so that a token
/// that was refused can be replaced without a restart.
#[derive(Clone, Debug)]
pub enum Token {
    None,
    Given(SecretString),
    /// The setting `enrolment_token` of this configuration file.
    Setting(PathBuf),
    File(PathBuf),
}

/// A certificate of the site's own PKI, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Whether the agent updates itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateMode {
    /// On, but not in a container, whose image would undo it.
    Auto,
    On,
    Off,
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

impl Config {
    pub fn from_env(flags: &Flags) -> Result<Self, Problems> {
        Self::read(flags, &|name| std::env::var_os(name))
    }

    pub fn read(
        flags: &Flags,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Problems> {
        let mut reader = Reader::open(flags, environment);
        match Self::collect(&mut reader) {
            Some(config) if reader.sources.problems.is_empty() => Ok(Self {
                warnings: reader.sources.warnings,
                ..config
            }),
            _ => Err(Problems(reader.sources.problems)),
        }
    }

    /// How the agent reaches the service.
    pub fn route(&self, names: Names) -> Route {
        Route {
            names,
            proxy: self.proxy.clone(),
            no_proxy: self.no_proxy.clone(),
            ..Route::default()
        }
    }

    /// Reads every setting before it returns, so that all problems are found. `None` only if
    /// the reader has noted one.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let addresses = reader.value("ingest_address", parse::addresses);
        let ca_cert_file = reader.value("ca_cert_file", parse::optional_path);
        let trust_updates = reader.value("trust_updates", parse::on_off);
        let token = reader.token();
        let data_dir = reader.value("data_dir", parse::path);
        let client_pair = reader.client_pair();
        let proxy = reader.value("https_proxy", parse::proxy);
        let no_proxy = reader.value("no_proxy", parse::exceptions);
        let bytes = reader.value("spool_size", parse::size);
        let age = reader.value("spool_age", parse::age);
        let level = reader.value("log", parse::level);
        let format = reader.value("log_format", parse::format);
        let key_age = reader.value("key_age", parse::key_age);
        let update = reader.value("update", parse::update);
        let update_keys = reader.value("update_keys", parse::path);
        let update_trial = reader.value("update_trial", parse::trial);
        let pinned = reader.value("pinned", parse::pinned);
        let pinned_cell = reader.value("pinned_cell", parse::truth);
        Some(Self {
            addresses: addresses?,
            ca_cert_file: ca_cert_file?,
            trust_updates: trust_updates?,
            token: token?,
            data_dir: data_dir?,
            client_pair: client_pair?,
            proxy: proxy?,
            no_proxy: no_proxy?,
            spool: Limits {
                bytes: bytes?,
                age: age?,
            },
            log: Log {
                level: level?,
                format: format?,
            },
            key_age: key_age?,
            update: update?,
            update_keys: update_keys?,
            update_trial: update_trial?,
            pinned: pinned?,
            pinned_cell: pinned_cell?,
            warnings: Vec::new(),
        })
    }
}

/// The data folder, for the commands that need no other setting.
pub fn data_dir(flags: &Flags) -> Result<PathBuf, Problems> {
    let mut reader = Reader::open(flags, &|name| std::env::var_os(name));
    let found = reader.value("data_dir", parse::path);
    found.ok_or(Problems(reader.sources.problems))
}

struct Reader<'a> {
    sources: Sources<'a>,
}

impl<'a> Reader<'a> {
    fn open(flags: &'a Flags, environment: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        let sources = Sources::open(flags, environment);
        Self { sources }
    }

    /// The value of a setting, or its default; `None`: a problem was noted.
    fn value<T>(&mut self, name: &'static str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let setting = Setting::named(name)?;
        let read = self.sources.find(setting).and_then(|found| {
            let message = match parse(found.text.trim()) {
                Ok(value) => return Ok(value),
                Err(reason) if setting.secret => reason,
                Err(reason) => format!("{} {reason}", shown(&found.text)),
            };
            Err(Problem::new(found.name, message))
        });
        self.noted(read)
    }

    fn noted<T>(&mut self, read: Result<T, Problem>) -> Option<T> {
        read.map_err(|problem| self.sources.problems.push(problem))
            .ok()
    }

    fn token(&mut self) -> Option<Token> {
        let given = self.value("enrolment_token", parse::token);
        let file = self.value("enrolment_token_file", parse::optional_path);
        match (given?, file?) {
            (None, None) => Some(Token::None),
            (Some(token), None) => Some(match self.sources.file_that_sets("enrolment_token") {
                Some(file) => Token::Setting(file),
                None => Token::Given(token),
            }),
            (None, Some(file)) => Some(Token::File(file)),
            (Some(_), Some(_)) => self.noted(Err(Problem::new(
                "enrolment_token",
                "is set beside enrolment_token_file: leave one of them out",
            ))),
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
                self.noted(Err(Problem::new(missing, message)))
            }
        }
    }
}

/// A value as a message shows it: quoted, escaped, and cut off if it is long.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
