//! Parsing DATABASE_URL in all forms that libpq accepts.
//!
//! The driver supports a part of libpq's parameters. The rest is handled here, so that a
//! string that works with `psql` works here too, or fails with the name of the parameter. No
//! error and no output contains the password.

mod params;
mod ssl;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio_postgres::{
    Config,
    config::{Host, LoadBalanceHosts},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::params::Params;
use crate::pg::tls::TlsError;

pub use ssl::SslMode;

/// Parameters that the driver knows by the same name and with the same meaning.
const DRIVER: &str = "user password dbname options application_name host hostaddr port \
    connect_timeout keepalives keepalives_idle keepalives_interval keepalives_retries \
    target_session_attrs channel_binding load_balance_hosts sslnegotiation";

/// Parameters of libpq that have no effect here, or whose demand is always met.
const IGNORED: &str = "sslcompression sslsni sslcertmode gssencmode gsslib gssdelegation \
    krbsrvname client_encoding fallback_application_name min_protocol_version \
    max_protocol_version";

/// What a URL without these parameters gets. A dead peer is detected within 25 s: three probes, the first after 10 s of
/// silence, then every 5 s. The service writes, so a server that does not accept writes, such as a standby, is refused.
const DEFAULTS: [(&str, &str); 5] = [
    ("application_name", "svc-ingest"),
    ("keepalives_idle", "10"),
    ("keepalives_interval", "5"),
    ("keepalives_retries", "3"),
    ("target_session_attrs", "read-write"),
];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// With several hosts: every second that is spent on a frozen one is a second without the next.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);

type Result<T, E = DatabaseUrlError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum DatabaseUrlError {
    #[error("the value is empty")]
    Empty,
    #[error("the scheme is {0}://, not postgres:// or postgresql://")]
    Scheme(String),
    #[error("the value is neither a postgres:// URL nor a list of key=value pairs")]
    Form,
    #[error(
        "there are too many '@': encode '@', '/', '?' and '%' in a password as %40, %2F, %3F and %25"
    )]
    Unescaped,
    #[error("a key has no value")]
    Pair,
    #[error("a quote is not closed")]
    Quote,
    #[error("{0} is not valid percent-encoded UTF-8")]
    Encoding(String),
    #[error("{0} contains a NUL character")]
    Nul(String),
    #[error("the value of {0} is not valid")]
    Invalid(String),
    #[error("the parameter {0} is not supported")]
    Unsupported(String),
    #[error(
        "the parameter after password is unknown: quote the password, or encode its '&' and '='"
    )]
    PasswordTail,
    #[error("a host name is missing")]
    NoHost,
    #[error("the numbers of hosts, addresses and ports do not match")]
    HostCount,
    #[error("sslmode={0} needs sslrootcert: a file, or system")]
    NoRoots(SslMode),
    #[error("sslrootcert=system needs sslmode=verify-full, not {0}")]
    WeakSystem(SslMode),
    #[error("sslcert and sslkey must both be set, and one is missing")]
    HalfPair,
    #[error("the TLS setup failed")]
    Tls(#[from] TlsError),
}

/// A valid connection string, whose certificates are already loaded.
#[derive(Clone)]
pub struct DatabaseUrl {
    config: Config,
    /// One for each host.
    servers: Arc<[Config]>,
    /// The server to try first.
    next: Arc<AtomicUsize>,
    mode: SslMode,
    tls: MakeRustlsConnect,
}

impl DatabaseUrl {
    pub fn parse(text: &str) -> Result<DatabaseUrl> {
        let mut params = Params::parse(text)?;
        let (mode, tls) = ssl::take_tls(&mut params)?;
        let tcp_user_timeout = take_tcp_user_timeout(&mut params)?;
        translate(&mut params);
        drop_ignored(&mut params);
        let config = driver_config(&params, tcp_user_timeout, mode)?;
        check_hosts(&config)?;
        let hosts = 0..config.get_hosts().len();
        let server = |at| driver_config(&params.of_host(at), tcp_user_timeout, mode);
        let servers: Arc<[Config]> = hosts.map(server).collect::<Result<_, _>>()?;
        let next = match config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => rand::random_range(0..servers.len()),
            _ => 0,
        };
        Ok(DatabaseUrl {
            config,
            servers,
            next: Arc::new(AtomicUsize::new(next)),
            mode,
            tls,
        })
    }

    /// The URL without the password, for logs and people.
    pub fn redacted(&self) -> String {
        let config = &self.config;
        let user = config.get_user().unwrap_or_default();
        let secret = config.get_password().map_or("", |_| ":***");
        let at = match user.is_empty() && secret.is_empty() {
            true => "",
            false => "@",
        };
        let hosts = hosts(config).join(",");
        let (dbname, mode) = (config.get_dbname().unwrap_or_default(), self.mode);
        format!("postgres://{user}{secret}{at}{hosts}/{dbname}?sslmode={mode}")
    }

    /// Each host, beginning with the one whose turn it is. Asking for a server makes it the turn of the
    /// next one.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (usize, &Config)> {
        let (first, count) = (self.next.load(Ordering::Relaxed), self.servers.len());
        (first..first + count).map(move |turn| {
            self.next.store((turn + 1) % count, Ordering::Relaxed);
            (turn % count, &self.servers[turn % count])
        })
    }

    /// The server works: it is its turn again, unless the load is to be balanced.
    pub(crate) fn prefer(&self, at: usize) {
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Disable {
            self.next.store(at, Ordering::Relaxed);
        }
    }

    /// The present server is tried last.
    pub(crate) fn pass(&self) {
        let next = (self.next.load(Ordering::Relaxed) + 1) % self.hosts();
        self.next.store(next, Ordering::Relaxed);
    }

    /// At least one.
    pub(crate) fn hosts(&self) -> usize {
        self.servers.len()
    }

    /// How long connecting to one address may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        let given = self.config.get_connect_timeout().copied();
        given.unwrap_or(CONNECT_TIMEOUT)
    }

    pub(crate) fn tls(&self) -> MakeRustlsConnect {
        self.tls.clone()
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatabaseUrl")
            .field(&self.redacted())
            .finish()
    }
}

/// Read here, because the unit is milliseconds in libpq and seconds in the driver.
fn take_tcp_user_timeout(params: &mut Params) -> Result<Duration> {
    let invalid = |_| DatabaseUrlError::Invalid("tcp_user_timeout".into());
    match params.take("tcp_user_timeout") {
        Some(text) => Ok(Duration::from_millis(text.parse().map_err(invalid)?)),
        None => Ok(Duration::from_secs(15)),
    }
}

/// Renames what the driver calls differently, and adds the defaults.
fn translate(params: &mut Params) {
    if let Some(count) = params.take("keepalives_count") {
        params.set("keepalives_retries", count);
    }
    let primary = |(key, value)| key == "target_session_attrs" && value == "primary";
    if params.iter().any(primary) {
        params.set("target_session_attrs", "read-write".to_owned());
    }
    let hosts = params.iter().find(|(key, _)| *key == "hostaddr");
    let hosts = hosts.map(|(_, hosts)| hosts.to_owned());
    if let Some(hosts) = hosts.filter(|_| !params.contains("host")) {
        params.set("host", hosts);
    }
    for (key, value) in DEFAULTS {
        if !params.contains(key) {
            params.set(key, value.to_owned());
        }
    }
}

fn drop_ignored(params: &mut Params) {
    for key in IGNORED.split(' ') {
        if params.take(key).is_some() {
            tracing::warn!(key, "ignoring a parameter of the database URL");
        }
    }
}

/// The driver's configuration. Each value is parsed alone first, so that the error can name an invalid one.
fn driver_config(params: &Params, tcp_user_timeout: Duration, mode: SslMode) -> Result<Config> {
    let mut all = String::new();
    let mut before = "";
    for (key, value) in params.iter() {
        if !DRIVER.split(' ').any(|known| known == key) {
            return Err(unsupported(before, key));
        }
        before = key;
        let value = value.replace('\\', "\\\\").replace('\'', "\\'");
        let pair = format!("{key}='{value}' ");
        let invalid = |_| DatabaseUrlError::Invalid(key.to_owned());
        pair.parse::<Config>().map_err(invalid)?;
        all.push_str(&pair);
    }
    let mut config: Config = all.parse().map_err(|_| DatabaseUrlError::Form)?;
    if config.get_connect_timeout().is_none() {
        let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
        config.connect_timeout(match servers {
            0 | 1 => CONNECT_TIMEOUT,
            _ => CONNECT_TIMEOUT_OF_SEVERAL,
        });
    }
    config.tcp_user_timeout(tcp_user_timeout);
    config.ssl_mode(ssl::driver_mode(mode, &config));
    Ok(config)
}

/// An unknown key after an unquoted password may be a part of the password, so it is not
/// shown.
fn unsupported(before: &str, key: &str) -> DatabaseUrlError {
    match before {
        "password" => DatabaseUrlError::PasswordTail,
        _ => DatabaseUrlError::Unsupported(key.to_owned()),
    }
}

fn check_hosts(config: &Config) -> Result<()> {
    let hosts = config.get_hosts();
    let (addresses, ports) = (config.get_hostaddrs(), config.get_ports());
    let unnamed = |host: &Host| matches!(host, Host::Tcp(name) if name.is_empty());
    if hosts.is_empty() || hosts.iter().any(unnamed) {
        return Err(DatabaseUrlError::NoHost);
    }
    let fits =
        |count: usize, alone: bool| count == 0 || count == hosts.len() || (alone && count == 1);
    if !fits(addresses.len(), false) || !fits(ports.len(), true) {
        return Err(DatabaseUrlError::HostCount);
    }
    match ports.contains(&0) {
        true => Err(DatabaseUrlError::Invalid("port".into())),
        false => Ok(()),
    }
}

fn hosts(config: &Config) -> Vec<String> {
    let port = |at: usize| {
        let ports = config.get_ports();
        ports.get(at).or(ports.first()).copied().unwrap_or(5432)
    };
    let hosts = config.get_hosts().iter().enumerate();
    hosts
        .map(|(at, host)| match host {
            Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
            Host::Tcp(name) => format!("{name}:{}", port(at)),
            Host::Unix(path) => {
                let path = path.to_string_lossy().replace('/', "%2F");
                format!("{path}:{}", port(at))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
