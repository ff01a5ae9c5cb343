//! The table of environment variables. A test compares the README's table with it.

svc_common::variables! {
    "DATABASE_URL", Required, secret "PostgreSQL connection string";
    "INGEST_TLS_CERT", Required, "Path to the TLS certificate, PEM format";
    "INGEST_TLS_KEY", Required, "Path to the TLS private key, PEM format";
    "INGEST_JWT_KEY_FILE", Default("/var/lib/svc/jwt_key.pem"),
        "Path to the RSA private key used to sign JWTs. Generated on first start if the file is missing";
    "INGEST_GRPC_PORT", Default("9443"), "gRPC listener port";
    "INGEST_HTTP_PORT", Default("8080"), "HTTP port for the JWKS endpoint, the health check and the metrics";
    // A URL with credentials is refused, and the refusal must not show them.
    "INGEST_AGENT_DOWNLOAD_BASE_URL", Default("http://localhost:3000"), secret
        "Public URL of the web application, from which agents build their binary's download URL";
    "INGEST_BIND_ADDRESS", Default("0.0.0.0"), "IP address of the gRPC listener";
    "INGEST_HTTP_BIND_ADDRESS", Unset("INGEST_BIND_ADDRESS"), "IP address of the HTTP listener";
    "INGEST_TLS_CLIENT_CA", Unset("none"),
        "Path to CA certificates, PEM format: agents' certificates must chain to one of them";
    "INGEST_PROXY_PROTOCOL_FROM", Unset("none"),
        "Networks of load balancers (`10.0.0.0/8`), separated by commas: connections from them must begin with a PROXY protocol header, which names the agent's address";
    "INGEST_JWT_EXTRA_KEY_FILES", Unset("none"),
        "Paths to further RSA keys (public keys suffice), separated by commas: published and accepted while the key is rotated";
    "INGEST_MAX_CONNECTIONS", Unset("the file limit − 512, at most one per 128 KiB of memory"),
        "Maximum number of agents' connections";
    "INGEST_DB_POOL_SIZE", Default("16"), "Maximum number of PostgreSQL connections of an instance";
    "INGEST_LISTEN_DATABASE_URL", Unset("DATABASE_URL"), secret
        "A direct PostgreSQL connection string for LISTEN and for dropping old partitions, when DATABASE_URL is a pooler";
    "INGEST_OWNER_DATABASE_URL", Unset("DATABASE_URL"), secret
        "A direct PostgreSQL connection string of the role that owns the tables: migrations, grants and partitions use it, and the role of DATABASE_URL needs no right to change tables";
    "INGEST_WEB_ROLE", Unset("none"),
        "An existing PostgreSQL role of the web application; it is granted read access and the decision functions";
    "INGEST_AUTO_MIGRATE", Default("true"), "`true`: migrate the schema at start; `false`: only verify it";
    "INGEST_QUEUE_URL", Default("memory:"), secret
        "The metrics queue: `memory:`, or `nats://` or `tls://` for NATS JetStream (several servers separated by commas)";
    "INGEST_NATS_CREDS", Unset("none"), "Path to a NATS credentials file";
    "INGEST_NATS_CA", Unset("the system's"),
        "Path to CA certificates, PEM format; the NATS servers' certificates must chain to one of them";
    "INGEST_CONSUME", Default("true"),
        "Whether this instance consumes the metrics queue too; `false` where `svc-ingest consume` does";
    // A URL with credentials is refused, and the refusal must not show them.
    "INGEST_OTLP_ENDPOINT", Unset("none"), secret
        "Base URL of an OTLP receiver (`http://collector:4318`), to which committed samples are sent as metrics";
    "INGEST_OTLP_PROTOCOL", Default("http/protobuf"),
        "Protocol of the receiver: `http/protobuf`, or `grpc` (usually port 4317)";
    "INGEST_OTLP_HEADERS", Unset("none"), secret
        "Further headers for the receiver, as `name=value` separated by commas";
    "INGEST_HEARTBEAT_INTERVAL", Default("30s"), "How often agents report";
    "INGEST_AGENT_LATEST_VERSION", Unset("none"),
        "The newest version of the agent, which the service announces to agents";
    "INGEST_METRICS_RETENTION", Default("30d"), "How long single samples are kept";
    "INGEST_ROLLUP_RETENTION", Default("400d"), "How long hourly rollups are kept";
    "INGEST_EVENTS_RETENTION", Default("365d"), "How long events of agents and people are kept";
    "INGEST_EXPIRE_HOSTS_OFFLINE_FOR", Unset("never"),
        "How long a host must have been offline to be retired, at least `1d`; its agent is revoked";
    "INGEST_DRAIN_DELAY", Default("0s"),
        "How long a stopping instance still serves after `/healthz` has turned 503, so that a load balancer can notice; it comes before the drain";
    "INGEST_DRAIN_TIMEOUT", Default("8s"),
        "How long a stopping instance waits for its clients (`docker stop` kills after 10)";
    "INGEST_LOG", Default("info"), "Which log lines are written: a level, or a tracing filter";
    "INGEST_LOG_FORMAT", Default("text"), "`text` or `json`";
}
