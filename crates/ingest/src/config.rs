//! Configuration: the environment, read once, into one plain struct.
//!
//! All problems are reported together, each by its variable's name. A variable
//! that names a file counts as read when the file is, so that a missing
//! certificate stands beside a mistyped port. Secrets never appear in a problem.

mod nats;
mod parse;
mod problem;
mod reader;
mod timing;
mod variables;

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use svc_store::DatabaseUrl;
use url::Url;

use crate::{
    listener::{ClientCa, Limits, TlsPair},
    queue::Bounds,
};
pub use nats::{NatsAuth, NatsServers};
pub(crate) use parse::duration;
pub use problem::{Problem, Problems};
use reader::Reader;
pub use timing::Timing;
pub use variables::{Fallback, VARIABLES, Variable};

/// Everything that the environment decides.
#[derive(Debug)]
pub struct Config {
    pub database: Database,
    pub grpc: Grpc,
    pub http: SocketAddr,
    pub jwt_key_file: PathBuf,
    pub queue: Queue,
    pub retention: Retention,
    pub agents: Agents,
    pub drain_timeout: Duration,
    pub log: Log,
    pub timing: Timing,
}

#[derive(Clone, Debug)]
pub struct Database {
    pub url: DatabaseUrl,
    /// Where the LISTEN connection goes, when `url` is a pooler.
    pub listen_url: Option<DatabaseUrl>,
    pub pool_size: usize,
    pub auto_migrate: bool,
    /// The web application's role, to be granted what it may read and call.
    pub web_role: Option<String>,
}

#[derive(Debug)]
pub struct Grpc {
    pub address: SocketAddr,
    pub tls: TlsPair,
    pub client_ca: Option<ClientCa>,
    pub limits: Limits,
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub url: QueueUrl,
    pub nats_creds: Option<PathBuf>,
    /// Certificates that NATS' own must chain to; the system's otherwise.
    pub nats_ca: Option<PathBuf>,
    pub consume: bool,
    /// Of the queue in this process. No variable sets them; tests shrink them.
    pub bounds: Bounds,
}

#[derive(Clone, Debug)]
pub enum QueueUrl {
    Memory,
    Nats(NatsServers),
}

#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub metrics: Duration,
    pub rollups: Duration,
    pub events: Duration,
}

/// What agents are told.
#[derive(Clone, Debug)]
pub struct Agents {
    pub heartbeat_interval: Duration,
    pub latest_version: Option<String>,
    pub download_base_url: Url,
}

/// How logs look; read before everything else, so that the rest can be logged.
#[derive(Clone, Debug)]
pub struct Log {
    pub filter: String,
    pub json: bool,
}

impl Config {
    /// Reads the process's environment.
    pub fn from_env() -> Result<Self, Problems> {
        Self::read(&|name| std::env::var_os(name))
    }

    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Problems> {
        let mut reader = Reader::new(lookup);
        let read = Self::collect(&mut reader);
        reader.finish(read)
    }

    /// `None` exactly when the reader has noted a problem.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let database = Database::collect(reader);
        let addresses = addresses(reader);
        let grpc = Grpc::collect(reader);
        let jwt_key_file = reader.key_file("INGEST_JWT_KEY_FILE");
        let queue = Queue::collect(reader);
        let retention = Retention::collect(reader);
        let agents = Agents::collect(reader);
        let drain_timeout = reader.value("INGEST_DRAIN_TIMEOUT", parse::drain_timeout);
        let log = Log::collect(reader);
        let (grpc_address, http) = addresses?;
        let (tls, client_ca, limits) = grpc?;
        let agents = agents?;
        Some(Self {
            database: database?,
            grpc: Grpc {
                address: grpc_address,
                tls,
                client_ca,
                limits,
            },
            http,
            jwt_key_file: jwt_key_file?,
            queue: queue?,
            retention: retention?,
            timing: Timing::new(agents.heartbeat_interval),
            agents,
            drain_timeout: drain_timeout?,
            log: log?,
        })
    }
}

/// What `svc-ingest consume` needs.
#[derive(Debug)]
pub struct Consume {
    pub database: Database,
    pub queue: Queue,
    pub http: SocketAddr,
    pub retention: Retention,
    pub timing: Timing,
}

impl Consume {
    pub fn from_env() -> Result<Self, Problems> {
        Self::read(&|name| std::env::var_os(name))
    }

    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Problems> {
        let mut reader = Reader::new(lookup);
        let read = Self::collect(&mut reader);
        reader.finish(read)
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let database = Database::collect(reader);
        let addresses = addresses(reader);
        let queue = Queue::collect(reader);
        let retention = Retention::collect(reader);
        let log = Log::collect(reader);
        let (queue, _) = (queue?, log?);
        if matches!(queue.url, QueueUrl::Memory) {
            let message =
                "is memory:, which is every instance's own: `consume` needs nats:// or tls://";
            reader.problem("INGEST_QUEUE_URL", message);
            return None;
        }
        Some(Self {
            database: database?,
            queue,
            http: addresses?.1,
            retention: retention?,
            timing: Timing::default(),
        })
    }
}

/// Where the signing key is, for the commands that look at nothing else.
pub fn jwt_key_file() -> Result<PathBuf, Problems> {
    let lookup = |name: &str| std::env::var_os(name);
    let mut reader = Reader::new(&lookup);
    let path = reader.key_file("INGEST_JWT_KEY_FILE");
    reader.finish(path)
}

impl Database {
    /// Where LISTEN goes: a pooler cannot carry it.
    pub fn listen_url(&self) -> DatabaseUrl {
        self.listen_url.clone().unwrap_or_else(|| self.url.clone())
    }

    /// What the admin commands need: DATABASE_URL alone.
    pub fn from_env() -> Result<Self, Problems> {
        Self::read(&|name| std::env::var_os(name))
    }

    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Problems> {
        let mut reader = Reader::new(lookup);
        let read = Self::collect(&mut reader);
        reader.finish(read)
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let url = reader.value("DATABASE_URL", parse::database_url);
        let listen_url = reader.optional("INGEST_LISTEN_DATABASE_URL", parse::database_url);
        let pool_size = reader.value("INGEST_DB_POOL_SIZE", parse::pool_size);
        let auto_migrate = reader.value("INGEST_AUTO_MIGRATE", parse::boolean);
        let web_role = reader.optional("INGEST_WEB_ROLE", parse::role);
        Some(Self {
            url: url?,
            listen_url: listen_url?,
            pool_size: pool_size?,
            auto_migrate: auto_migrate?,
            web_role: web_role?,
        })
    }
}

impl Grpc {
    fn collect(reader: &mut Reader<'_>) -> Option<(TlsPair, Option<ClientCa>, Limits)> {
        let certificate = reader.value("INGEST_TLS_CERT", parse::path);
        let key = reader.value("INGEST_TLS_KEY", parse::path);
        let tls = reader.tls_pair(certificate, key);
        let client_ca = reader.client_ca("INGEST_TLS_CLIENT_CA");
        let max_connections = reader.value("INGEST_MAX_CONNECTIONS", parse::max_connections);
        Some((tls?, client_ca?, Limits::new(max_connections?)))
    }
}

impl Queue {
    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Problems> {
        let mut reader = Reader::new(lookup);
        let read = Self::collect(&mut reader);
        reader.finish(read)
    }

    /// The in-process queue is this process's own: nobody else can consume it.
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let url = reader.value("INGEST_QUEUE_URL", parse::queue_url);
        let nats_creds = reader.optional("INGEST_NATS_CREDS", parse::readable_file);
        let nats_ca = reader.optional("INGEST_NATS_CA", parse::readable_file);
        let consume = reader.value("INGEST_CONSUME", parse::boolean);
        let queue = Self {
            url: url?,
            nats_creds: nats_creds?,
            nats_ca: nats_ca?,
            consume: consume?,
            bounds: Bounds::default(),
        };
        if matches!(queue.url, QueueUrl::Memory) && !queue.consume {
            let message =
                "false needs a queue that others can consume, and memory: is this process's own";
            reader.problem("INGEST_CONSUME", message);
            return None;
        }
        Some(queue)
    }
}

impl Retention {
    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let metrics = reader.value("INGEST_METRICS_RETENTION", parse::retention);
        let rollups = reader.value("INGEST_ROLLUP_RETENTION", parse::retention);
        let events = reader.value("INGEST_EVENTS_RETENTION", parse::retention);
        Some(Self {
            metrics: metrics?,
            rollups: rollups?,
            events: events?,
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

impl Log {
    /// Never fails, because the failures of the rest are shown through it: bad
    /// values fall back to the defaults, and `Config` reports them by name.
    pub fn from_env() -> Self {
        let lookup = |name: &str| std::env::var_os(name);
        Self::collect(&mut Reader::new(&lookup)).unwrap_or_default()
    }

    fn collect(reader: &mut Reader<'_>) -> Option<Self> {
        let filter = reader.value("INGEST_LOG", parse::log_filter);
        let json = reader.value("INGEST_LOG_FORMAT", parse::log_is_json);
        Some(Self {
            filter: filter?,
            json: json?,
        })
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            filter: "info".into(),
            json: false,
        }
    }
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
        reader.problem(
            "INGEST_HTTP_PORT",
            format!("is {}, as is INGEST_GRPC_PORT: choose another", http.port()),
        );
        return None;
    }
    Some((grpc, http))
}
