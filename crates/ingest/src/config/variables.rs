//! The table of environment variables: names, defaults and meanings. A test compares the README's table with it.

/// What an unset variable means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Required,
    Default(&'static str),
    /// The feature is off, or another variable applies. The text is for the README.
    Unset(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub fallback: Fallback,
    /// Problems never show the value of a secret.
    pub secret: bool,
    pub meaning: &'static str,
}

impl Variable {
    const fn required(name: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Fallback::Required, meaning)
    }

    const fn default(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Fallback::Default(default), meaning)
    }

    const fn unset(name: &'static str, shown: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Fallback::Unset(shown), meaning)
    }

    const fn new(name: &'static str, fallback: Fallback, meaning: &'static str) -> Self {
        Self {
            name,
            fallback,
            secret: false,
            meaning,
        }
    }

    const fn secret(self) -> Self {
        Self {
            secret: true,
            ..self
        }
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }
}

pub const VARIABLES: &[Variable] = &[
    Variable::required("DATABASE_URL", "PostgreSQL connection string").secret(),
    Variable::required("INGEST_TLS_CERT", "Path to the TLS certificate, PEM format"),
    Variable::required("INGEST_TLS_KEY", "Path to the TLS private key, PEM format"),
    Variable::default(
        "INGEST_JWT_KEY_FILE",
        "/var/lib/svc/jwt_key.pem",
        "Path to the RSA private key used to sign JWTs. Generated on first start if the file is missing",
    ),
    Variable::default("INGEST_GRPC_PORT", "9443", "gRPC listener port"),
    Variable::default(
        "INGEST_HTTP_PORT",
        "8080",
        "HTTP port for the JWKS endpoint, the health check and the metrics",
    ),
    Variable::default(
        "INGEST_AGENT_DOWNLOAD_BASE_URL",
        "http://localhost:3000",
        "Public URL of the web application, from which agents build their binary's download URL",
    )
    .secret(), // A URL with credentials is refused, and the refusal must not show them.
    Variable::default(
        "INGEST_BIND_ADDRESS",
        "0.0.0.0",
        "IP address of the gRPC listener",
    ),
    Variable::unset(
        "INGEST_HTTP_BIND_ADDRESS",
        "INGEST_BIND_ADDRESS",
        "IP address of the HTTP listener",
    ),
    Variable::unset(
        "INGEST_TLS_CLIENT_CA",
        "none",
        "Path to CA certificates, PEM format: agents' certificates must chain to one of them",
    ),
    Variable::unset(
        "INGEST_MAX_CONNECTIONS",
        "the file limit − 512",
        "Maximum number of agents' connections",
    ),
    Variable::default(
        "INGEST_DB_POOL_SIZE",
        "16",
        "Maximum number of PostgreSQL connections of an instance",
    ),
    Variable::unset(
        "INGEST_LISTEN_DATABASE_URL",
        "DATABASE_URL",
        "A direct PostgreSQL connection string for LISTEN and for dropping old partitions, when DATABASE_URL is a pooler",
    )
    .secret(),
    Variable::unset(
        "INGEST_WEB_ROLE",
        "none",
        "An existing PostgreSQL role of the web application; it is granted read access and the decision functions",
    ),
    Variable::default(
        "INGEST_AUTO_MIGRATE",
        "true",
        "`true`: migrate the schema at start; `false`: only verify it",
    ),
    Variable::default(
        "INGEST_QUEUE_URL",
        "memory:",
        "The metrics queue: `memory:`, or `nats://` or `tls://` for NATS JetStream (several servers separated by commas)",
    )
    .secret(),
    Variable::unset(
        "INGEST_NATS_CREDS",
        "none",
        "Path to a NATS credentials file",
    ),
    Variable::unset(
        "INGEST_NATS_CA",
        "the system's",
        "Path to CA certificates, PEM format; the NATS servers' certificates must chain to one of them",
    ),
    Variable::default(
        "INGEST_CONSUME",
        "true",
        "Whether this instance consumes the metrics queue too; `false` where `svc-ingest consume` does",
    ),
    Variable::default(
        "INGEST_HEARTBEAT_INTERVAL",
        "30s",
        "How often agents report",
    ),
    Variable::unset(
        "INGEST_AGENT_LATEST_VERSION",
        "none",
        "The newest version of the agent, which the service announces to agents",
    ),
    Variable::default(
        "INGEST_METRICS_RETENTION",
        "7d",
        "How long single samples are kept",
    ),
    Variable::default(
        "INGEST_ROLLUP_RETENTION",
        "400d",
        "How long hourly rollups are kept",
    ),
    Variable::default(
        "INGEST_EVENTS_RETENTION",
        "365d",
        "How long agents' events are kept",
    ),
    Variable::default(
        "INGEST_DRAIN_TIMEOUT",
        "8s",
        "How long a stopping instance waits for its clients (`docker stop` kills after 10)",
    ),
    Variable::default(
        "INGEST_LOG",
        "info",
        "Which log lines are written: a level, or a tracing filter",
    ),
    Variable::default("INGEST_LOG_FORMAT", "text", "`text` or `json`"),
];
