//! Configuration: the environment, read once into one plain struct.
//!
//! All problems are reported together, each by its variable's name. Reading a variable that names a file
//! reads the file too, so that a missing certificate is reported together with a mistyped port. Secrets
//! never appear in a problem.

mod files;
mod memory;
mod parse;
mod timing;
mod variables;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use svc_common::{
    log::Log,
    networks::Networks,
    settings::{Reader, read_environment},
    tls::TlsPair,
};
use svc_front::listener::{ClientCa, Limits};
use svc_pipeline::{
    budget::BudgetBounds,
    export::{RETRIES, Receiver},
    queue::{Bounds, QueueSettings, QueueUrl},
};
use svc_store::{DatabaseUrl, Migration, StoreOptions};
use url::Url;

use crate::signing::PublicKey;
pub use memory::limit as memory_limit;
pub use svc_common::settings::{Fallback, Lookup, Problem, Problems, Variable};
pub use timing::Timing;
pub use variables::VARIABLES;

/// Everything that the environment decides.
#[derive(Debug)]
pub struct Config {
    pub database: Database,
    pub grpc: Grpc,
    pub http: SocketAddr,
    pub jwt_key_file: PathBuf,
    /// Published and accepted beside the signing key.
    pub jwt_extra_keys: Vec<PublicKey>,
    pub queue: QueueSettings,
    pub export: Option<Receiver>,
    pub retention: Retention,
    pub agents: Agents,
    /// From the stop to the drain.
    pub drain_delay: Duration,
    pub drain_timeout: Duration,
    pub log: Log,
    pub timing: Timing,
}

#[derive(Clone, Debug)]
pub struct Database {
    pub url: DatabaseUrl,
    /// Where the LISTEN connection goes, when `url` is a pooler.
    pub listen_url: Option<DatabaseUrl>,
    /// How the owner of the tables connects, when that is not the role of `url`.
    pub owner_url: Option<DatabaseUrl>,
    pub pool_size: usize,
    pub auto_migrate: bool,
    /// The web application's role, which is granted what it may read and call.
    pub web_role: Option<String>,
    /// No variable sets it; a test invents the next version.
    pub later_migrations: &'static [Migration],
}

#[derive(Debug)]
pub struct Grpc {
    pub address: SocketAddr,
    pub tls: TlsPair,
    pub client_ca: Option<ClientCa>,
    /// Load balancers that send the PROXY protocol.
    pub proxies: Networks,
    pub limits: Limits,
    /// No variable sets it; tests shrink it.
    pub report_budget: BudgetBounds,
}

#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub metrics: Duration,
    pub rollups: Duration,
    pub events: Duration,
    /// How long a host may be offline before it is retired; `None`: for ever.
    pub offline_hosts: Option<Duration>,
}

/// What the service tells agents.
#[derive(Clone, Debug)]
pub struct Agents {
    pub heartbeat_interval: Duration,
    pub latest_version: Option<String>,
    pub download_base_url: Url,
}

impl Config {
    pub fn from_env() -> Result<Self, Problems> {
        from_environment(Self::collect)
    }

    pub fn read(lookup: Lookup<'_>) -> Result<Self, Problems> {
        read(lookup, Self::collect)
    }

    /// Returns `None` exactly when the reader has noted a problem.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let database = Database::collect(reader);
        let addresses = addresses(reader);
        let (grpc, http) = addresses.unzip();
        let grpc = Grpc::collect(reader, grpc);
        let (jwt_key_file, jwt_extra_keys) = jwt_key_settings(reader).unzip();
        let queue = queue(reader);
        let export = export(reader);
        let retention = Retention::collect(reader);
        let agents = Agents::collect(reader);
        let drain_delay = reader.value("INGEST_DRAIN_DELAY", parse::drain_delay);
        let drain_timeout = reader.value("INGEST_DRAIN_TIMEOUT", parse::drain_timeout);
        let log = log(reader);
        let agents = agents?;
        Some(Self {
            database: database?,
            grpc: grpc?,
            http: http?,
            jwt_key_file: jwt_key_file?,
            jwt_extra_keys: jwt_extra_keys?,
            queue: queue?,
            export: export?,
            retention: retention?,
            timing: Timing::new(agents.heartbeat_interval),
            agents,
            drain_delay: drain_delay?,
            drain_timeout: drain_timeout?,
            log: log?,
        })
    }
}

/// What `svc-ingest consume` needs.
#[derive(Debug)]
pub struct Consume {
    pub database: Database,
    pub queue: QueueSettings,
    pub http: SocketAddr,
    pub export: Option<Receiver>,
    pub retention: Retention,
    pub timing: Timing,
}

impl Consume {
    pub fn from_env() -> Result<Self, Problems> {
        from_environment(Self::collect)
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let database = Database::collect(reader);
        let addresses = addresses(reader);
        let queue = queue(reader);
        let export = export(reader);
        let retention = Retention::collect(reader);
        let log = log(reader);
        let (queue, _) = (queue?, log?);
        if matches!(queue.url, QueueUrl::Memory) {
            let message =
                "is memory:, which is every instance's own: `consume` needs nats:// or tls://";
            return reader.problem("INGEST_QUEUE_URL", message);
        }
        Some(Self {
            database: database?,
            queue,
            http: addresses?.1,
            export: export?,
            retention: retention?,
            timing: Timing::default(),
        })
    }
}

/// What the HTTP port of a service with this configuration is bound to.
pub fn http_address() -> Result<SocketAddr, Problems> {
    Ok(from_environment(addresses)?.1)
}

/// The path of the signing key and the further keys, for the commands that need nothing else.
pub fn jwt_keys() -> Result<(PathBuf, Vec<PublicKey>), Problems> {
    from_environment(jwt_key_settings)
}

fn jwt_key_settings(reader: &mut Reader<'_>) -> Option<(PathBuf, Vec<PublicKey>)> {
    let key_file = files::key_file(reader, "INGEST_JWT_KEY_FILE");
    let extra_keys = files::extra_keys(reader, "INGEST_JWT_EXTRA_KEY_FILES");
    Some((key_file?, extra_keys?))
}

impl Database {
    /// Where LISTEN goes: it does not work through a pooler.
    pub fn listen_url(&self) -> DatabaseUrl {
        self.listen_url.clone().unwrap_or_else(|| self.url.clone())
    }

    /// Where partitions are dropped: as the owner of the tables, and not through a pooler.
    pub fn direct_url(&self) -> DatabaseUrl {
        let owner = self.owner_url.clone();
        owner.unwrap_or_else(|| self.listen_url())
    }

    pub fn store_options(&self, pool_size: usize) -> StoreOptions {
        let mut options = StoreOptions::for_service(pool_size);
        options.later_migrations = self.later_migrations;
        options
    }

    /// The variable with the connection of the owner of the tables.
    pub fn owner_variable(&self) -> &'static str {
        match self.owner_url {
            Some(_) => "INGEST_OWNER_DATABASE_URL",
            None => "DATABASE_URL",
        }
    }

    /// The database section alone, for the admin commands.
    pub fn from_env() -> Result<Self, Problems> {
        from_environment(Self::collect)
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let url = reader.value("DATABASE_URL", parse::database_url);
        let listen_url = reader.optional("INGEST_LISTEN_DATABASE_URL", parse::database_url);
        let owner_url = reader.optional("INGEST_OWNER_DATABASE_URL", parse::database_url);
        let pool_size = reader.value("INGEST_DB_POOL_SIZE", parse::pool_size);
        let auto_migrate = reader.value("INGEST_AUTO_MIGRATE", parse::boolean);
        let web_role = reader.optional("INGEST_WEB_ROLE", parse::role);
        Some(Self {
            url: url?,
            listen_url: listen_url?,
            owner_url: owner_url?,
            pool_size: pool_size?,
            auto_migrate: auto_migrate?,
            web_role: web_role?,
            later_migrations: &[],
        })
    }
}

impl Grpc {
    fn collect(reader: &mut Reader<'_>, address: Option<SocketAddr>) -> Option<Self> {
        let tls = files::tls_pair(reader, "INGEST_TLS_CERT", "INGEST_TLS_KEY");
        let client_ca = files::client_ca(reader, "INGEST_TLS_CLIENT_CA");
        let proxies = reader.optional("INGEST_PROXY_PROTOCOL_FROM", parse::networks);
        let max_connections = reader.value("INGEST_MAX_CONNECTIONS", parse::max_connections);
        Some(Self {
            address: address?,
            tls: tls?,
            client_ca: client_ca?,
            proxies: proxies?.unwrap_or_default(),
            limits: Limits::new(max_connections?),
            report_budget: BudgetBounds::default(),
        })
    }
}

/// The settings of the metrics queue, for what uses nothing else.
pub fn queue_settings(lookup: Lookup<'_>) -> Result<QueueSettings, Problems> {
    read(lookup, queue)
}

fn queue(reader: &mut Reader<'_>) -> Option<QueueSettings> {
    let url = reader.value("INGEST_QUEUE_URL", parse::queue_url);
    let nats_creds = reader.optional("INGEST_NATS_CREDS", parse::readable_file);
    let nats_ca = reader.optional("INGEST_NATS_CA", parse::readable_file);
    let consume = reader.value("INGEST_CONSUME", parse::boolean);
    let queue = QueueSettings {
        url: url?,
        nats_creds: nats_creds?,
        nats_ca: nats_ca?,
        consume: consume?,
        bounds: Bounds::default(),
        skip_check: Duration::from_secs(5),
    };
    if matches!(queue.url, QueueUrl::Memory) && !queue.consume {
        let message =
            "false needs a queue that others can consume, and memory: is this process's own";
        return reader.problem("INGEST_CONSUME", message);
    }
    Some(queue)
}

/// Where committed samples are exported to, if anywhere.
fn export(reader: &mut Reader<'_>) -> Option<Option<Receiver>> {
    let url = reader.optional("INGEST_OTLP_ENDPOINT", parse::otlp_endpoint);
    let protocol = reader.value("INGEST_OTLP_PROTOCOL", parse::otlp_protocol);
    let headers = reader.optional("INGEST_OTLP_HEADERS", parse::headers);
    let (url, protocol, headers) = (url?, protocol?, headers?.unwrap_or_default());
    Some(url.map(|url| Receiver {
        protocol,
        url,
        headers,
        retries: RETRIES,
    }))
}

impl Retention {
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let metrics = reader.value("INGEST_METRICS_RETENTION", parse::retention);
        let rollups = reader.value("INGEST_ROLLUP_RETENTION", parse::retention);
        let events = reader.value("INGEST_EVENTS_RETENTION", parse::retention);
        let offline_hosts = reader.optional("INGEST_EXPIRE_HOSTS_OFFLINE_FOR", parse::host_expiry);
        Some(Self {
            metrics: metrics?,
            rollups: rollups?,
            events: events?,
            offline_hosts: offline_hosts?,
        })
    }
}

impl Agents {
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let heartbeat_interval =
            reader.value("INGEST_HEARTBEAT_INTERVAL", parse::heartbeat_interval);
        let latest_version = reader.optional("INGEST_AGENT_LATEST_VERSION", parse::version);
        let download_base_url = reader.value("INGEST_AGENT_DOWNLOAD_BASE_URL", parse::base_url);
        Some(Self {
            heartbeat_interval: heartbeat_interval?,
            latest_version: latest_version?,
            download_base_url: download_base_url?,
        })
    }
}

/// The form of the log, read before everything else. It never fails, because the other failures are reported
/// through the log: bad values fall back to the defaults, and `Config` reports them by name.
pub fn log_settings() -> Log {
    from_environment(log).unwrap_or_default()
}

fn log(reader: &mut Reader<'_>) -> Option<Log> {
    Log::read(reader, ["INGEST_LOG", "INGEST_LOG_FORMAT"])
}

fn from_environment<T>(collect: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Result<T, Problems> {
    read_environment(VARIABLES, collect)
}

/// Reads a section, or returns all problems of its variables.
fn read<T>(
    lookup: Lookup<'_>,
    collect: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Problems> {
    svc_common::settings::read(VARIABLES, lookup, collect)
}

/// Both listening addresses. The two ports may be equal only on different addresses.
fn addresses(reader: &mut Reader<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let ip: Option<IpAddr> = reader.value("INGEST_BIND_ADDRESS", parse::ip);
    let http_ip = reader.optional("INGEST_HTTP_BIND_ADDRESS", parse::ip);
    let grpc_port = reader.value("INGEST_GRPC_PORT", parse::port);
    let http_port = reader.value("INGEST_HTTP_PORT", parse::port);
    let grpc = SocketAddr::new(ip?, grpc_port?);
    let http = SocketAddr::new(http_ip?.unwrap_or(grpc.ip()), http_port?);
    let overlap =
        grpc.ip() == http.ip() || grpc.ip().is_unspecified() || http.ip().is_unspecified();
    if grpc.port() == http.port() && overlap {
        let message = format!("is {}, as is INGEST_GRPC_PORT: choose another", http.port());
        return reader.problem("INGEST_HTTP_PORT", message);
    }
    Some((grpc, http))
}
