//! The table of environment variables. A test compares the table in docs/console.md with it.

svc_common::variables! {
    "DATABASE_URL", Required, secret "PostgreSQL connection string of the web role";
    "CONSOLE_BASE_URL", Required, "Public URL of the console, without a path; it decides on cookies and origins";
    "CONSOLE_PORT", Default("3000"), "Port of the console";
    "CONSOLE_BIND_ADDRESS", Unset("`0.0.0.0` with a certificate, otherwise `127.0.0.1`"), "IP address of the listener";
    "CONSOLE_TLS_CERT", Unset("none"),
        "Path to the console's certificate chain, PEM format, for HTTPS without a proxy; read again when it changes";
    "CONSOLE_TLS_KEY", Unset("none"), "Path to the private key of CONSOLE_TLS_CERT, PEM format";
    "CONSOLE_JWKS_URL", Default("http://localhost:8080/.well-known/jwks.json"),
        "The service's JWKS document, which the console fetches in the background";
    "CONSOLE_JWKS_CA", Unset("the system's"), "Path to CA certificates, PEM format, for an https:// JWKS URL";
    "CONSOLE_LISTEN_DATABASE_URL", Unset("DATABASE_URL"), secret
        "A direct PostgreSQL connection string for LISTEN, when DATABASE_URL is a pooler";
    "CONSOLE_DB_POOL_SIZE", Default("12"), "Maximum number of PostgreSQL connections";
    "CONSOLE_AUTO_MIGRATE", Default("true"), "`true`: migrate the schema `console` at start; `false`: only verify it";
    "CONSOLE_SESSION_LIFETIME", Default("12h"), "How long a person stays signed in";
    "CONSOLE_TRUSTED_PROXIES", Unset("none"),
        "Addresses or networks (`10.0.0.0/8`) of reverse proxies, separated by commas; only they may name the client in X-Forwarded-For";
    "CONSOLE_CA", Unset("none"),
        "Path to the CA of the console's own certificate, PEM format, unless hosts trust it already: commands that the console shows pin it";
    "CONSOLE_DOWNLOAD_DIR", Default("/var/lib/svc-console/releases"),
        "The folder of the agent's releases, which `svc-console releases import` fills; it may be missing";
    "CONSOLE_DOWNLOAD_RATE", Default("50"), "How much all downloads together take of the network, in MiB a second";
    "CONSOLE_RELEASE_KEY", Unset("none"),
        "Path to the Ed25519 public key of releases, PEM format: imports and `/install.sh` then demand its signature";
    "CONSOLE_INGEST_ADDRESS", Unset("the base URL's host, port 9443"),
        "The address of the ingest service for agents, `host` or `host:port`";
    "CONSOLE_INGEST_CA", Unset("none"),
        "Path to the ingest service's certificate or its issuer, PEM format, which `/install.sh` pins";
    "CONSOLE_LOG", Default("info"), "Which log lines are written: a level, or a tracing filter";
    "CONSOLE_LOG_FORMAT", Default("text"), "`text` or `json`";
}
