//! Configuration: the environment, read once into one plain struct. All problems are reported
//! together, each by its variable's name, and no problem shows a secret.

mod listening;
mod parse;
mod variables;

use std::{path::PathBuf, time::Duration};

use svc_common::{
    log::Log,
    networks::Networks,
    settings::{Lookup, Problems, Reader, read, read_environment},
};
use svc_release::PublicKey;
use svc_store::{DatabaseUrl, Store, StoreError, StoreOptions};
use url::Url;

pub use listening::{Listening, bound};
pub use variables::VARIABLES;

/// Everything that the environment decides.
#[derive(Debug)]
pub struct Config {
    pub database: Database,
    pub listening: Listening,
    pub web: Web,
    pub jwks: Jwks,
    pub install: Install,
    pub log: Log,
}

#[derive(Clone, Debug)]
pub struct Database {
    pub url: DatabaseUrl,
    /// Where the LISTEN connection goes, when `url` is a pooler.
    pub listen_url: DatabaseUrl,
    pub pool_size: usize,
    pub auto_migrate: bool,
}

/// How people reach the console.
#[derive(Clone, Debug)]
pub struct Web {
    pub base_url: Url,
    pub session_lifetime: Duration,
    pub trusted_proxies: Networks,
}

#[derive(Clone, Debug)]
pub struct Jwks {
    pub url: Url,
    pub ca: Option<String>,
}

/// What `/download` and `/install.sh` offer.
#[derive(Clone, Debug)]
pub struct Install {
    pub releases: Releases,
    /// Of all downloads together, in bytes a second.
    pub download_rate: u32,
    /// The CA of the console's own certificate, PEM, where hosts do not trust it by themselves.
    pub console_ca: Option<String>,
    /// The ingest service's address for agents.
    pub ingest_address: String,
    /// The certificate that the script pins, PEM.
    pub ingest_ca: Option<String>,
}

/// Where releases are, and who signs them.
#[derive(Clone, Debug)]
pub struct Releases {
    pub folder: PathBuf,
    /// Whoever signs releases. Without a key, checksums are enough.
    pub keys: Vec<PublicKey>,
}

impl Config {
    pub fn from_env() -> Result<Self, Problems> {
        read_environment(VARIABLES, Self::collect)
    }

    pub fn read(lookup: Lookup<'_>) -> Result<Self, Problems> {
        read(VARIABLES, lookup, Self::collect)
    }

    /// Returns `None` exactly when the reader has noted a problem.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let database = Database::collect(reader);
        let listening = Listening::collect(reader);
        let web = Web::collect(reader);
        let jwks_url = reader.value("CONSOLE_JWKS_URL", parse::http_url);
        let jwks_ca = reader.optional("CONSOLE_JWKS_CA", parse::certificates);
        let console_ca = reader.optional("CONSOLE_CA", parse::certificates);
        let releases = Releases::collect(reader);
        let download_rate = reader.value("CONSOLE_DOWNLOAD_RATE", parse::rate);
        let ingest_address = reader.optional("CONSOLE_INGEST_ADDRESS", parse::address);
        let ingest_ca = reader.optional("CONSOLE_INGEST_CA", parse::certificates);
        let log = log(reader);
        let (web, listening) = (web?, listening?);
        if listening.tls.is_some() && !web.is_https() {
            let problem = "is not https://, but the console serves HTTPS with CONSOLE_TLS_CERT";
            return reader.problem("CONSOLE_BASE_URL", problem);
        }
        let ingest_address = ingest_address?.unwrap_or_else(|| default_ingest(&web.base_url));
        Some(Self {
            database: database?,
            listening,
            web,
            jwks: Jwks {
                url: jwks_url?,
                ca: jwks_ca?,
            },
            install: Install {
                releases: releases?,
                download_rate: download_rate?,
                console_ca: console_ca?,
                ingest_address,
                ingest_ca: ingest_ca?,
            },
            log: log?,
        })
    }
}

impl Database {
    /// The database section alone, for commands.
    pub fn from_env() -> Result<Self, Problems> {
        read_environment(VARIABLES, Self::collect)
    }

    /// The store of a command.
    pub fn store(self) -> Result<Store, StoreError> {
        Store::new(self.url, StoreOptions::for_commands())
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let url = reader.value("DATABASE_URL", parse::database_url);
        let listen_url = reader.optional("CONSOLE_LISTEN_DATABASE_URL", parse::database_url);
        let pool_size = reader.value("CONSOLE_DB_POOL_SIZE", parse::pool_size);
        let auto_migrate = reader.value("CONSOLE_AUTO_MIGRATE", parse::boolean);
        let url = url?;
        Some(Self {
            listen_url: listen_url?.unwrap_or_else(|| url.clone()),
            url,
            pool_size: pool_size?,
            auto_migrate: auto_migrate?,
        })
    }
}

impl Web {
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let base_url = reader.value("CONSOLE_BASE_URL", parse::base_url);
        let session_lifetime = reader.value("CONSOLE_SESSION_LIFETIME", parse::lifetime);
        let trusted_proxies = reader.optional("CONSOLE_TRUSTED_PROXIES", parse::networks);
        Some(Self {
            base_url: base_url?,
            session_lifetime: session_lifetime?,
            trusted_proxies: trusted_proxies?.unwrap_or_default(),
        })
    }

    /// Scheme, host and port, as browsers send them.
    pub fn origin(&self) -> String {
        self.base_url.origin().ascii_serialization()
    }

    pub fn is_https(&self) -> bool {
        self.base_url.scheme() == "https"
    }
}

impl Releases {
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let folder = reader.value("CONSOLE_DOWNLOAD_DIR", parse::path);
        let keys = reader.optional("CONSOLE_RELEASE_KEY", parse::release_keys);
        Some(Self {
            folder: folder?,
            keys: keys?.unwrap_or_default(),
        })
    }
}

/// The releases alone, for the commands that manage them.
pub fn releases() -> Result<Releases, Problems> {
    read_environment(VARIABLES, Releases::collect)
}

/// The form of the log, read before everything else. Bad values fall back to the defaults here, and
/// `Config` reports them by name.
pub fn log_settings() -> Log {
    read_environment(VARIABLES, log).unwrap_or_default()
}

/// The base URL alone, for the commands that print links.
pub fn base_url() -> Result<Url, Problems> {
    read_environment(VARIABLES, |reader| {
        reader.value("CONSOLE_BASE_URL", parse::base_url)
    })
}

fn log(reader: &mut Reader<'_>) -> Option<Log> {
    Log::read(reader, ["CONSOLE_LOG", "CONSOLE_LOG_FORMAT"])
}

fn default_ingest(base_url: &Url) -> String {
    format!("{}:9443", base_url.host_str().unwrap_or("localhost"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn problems(set: &[(&str, &str)]) -> String {
        let lookup = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Config::read(&lookup).map_or_else(|problems| problems.to_string(), |_| String::new())
    }

    const GOOD: [(&str, &str); 2] = [
        ("DATABASE_URL", "postgres://web:geheim@db/svc"),
        ("CONSOLE_BASE_URL", "https://console.example"),
    ];

    #[test]
    fn two_variables_are_enough() {
        assert_eq!(problems(&GOOD), "");
    }

    #[test]
    fn all_problems_are_reported_together_and_show_no_secret() {
        let report = problems(&[
            ("DATABASE_URL", "mysql://web:geheim@db/svc"),
            ("CONSOLE_BASE_URL", "https://console.example/app"),
            ("CONSOLE_PORT", "0"),
            ("CONSOLE_TRUSTED_PROXIES", "10.0.0.1, proxy"),
            ("CONSOLE_INGEST_ADDRESS", "a;rm -rf"),
            ("CONSOLE_SESSION_LIFETIME", "1s"),
            ("CONSOLE_TLS_CERT", "/nowhere/tls.crt"),
        ]);
        assert_eq!(report.lines().count(), 7, "{report}");
        assert!(!report.contains("geheim"), "{report}");
    }
}
