//! The flags of `svc-ingest init`.

use std::path::PathBuf;

use url::Url;

use crate::cli::output::Output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A PostgreSQL administrator's connection string, to create the service's role and database [default:
    /// PostgreSQL on this machine]
    #[arg(
        long,
        value_name = "URL",
        env = "SVC_ADMIN_DATABASE_URL",
        hide_env = true
    )]
    pub admin_url: Option<String>,
    /// The service's connection string, if role and database exist
    #[arg(long, value_name = "URL", conflicts_with = "admin_url")]
    pub database_url: Option<String>,
    /// What role and database are called
    #[arg(long, value_name = "NAME", default_value = "svc")]
    pub database: String,
    /// A DNS name or an address under which agents reach the service; may be repeated [default: this host's name]
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// An existing certificate, instead of one from a new private CA
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The key that signs JWTs [default: /var/lib/svc/jwt_key.pem]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The public URL of the web console: makes its role and its settings, too
    #[arg(long, value_name = "URL")]
    pub console_url: Option<Url>,
    /// Where the console's settings go, with a copy of the private CA's certificate [default: beside the service's]
    #[arg(long, value_name = "FOLDER", requires = "console_url")]
    pub console_folder: Option<PathBuf>,
    /// The user that runs the service, which may read its keys
    #[arg(long, value_name = "NAME", default_value = "svc-ingest")]
    pub user: String,
    /// Make no first token: for a run whose output goes to a log
    #[arg(long)]
    pub no_token: bool,
    /// Ask nothing, and use the defaults
    #[arg(long)]
    pub yes: bool,
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}
