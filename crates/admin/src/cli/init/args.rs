//! The flags of `svc-ingest init`.

use std::path::PathBuf;

use url::Url;

use crate::cli::output::Output;

pub const ADMIN_URL: &str = "SVC_ADMIN_DATABASE_URL";
pub const DATABASE_URL: &str = "SVC_DATABASE_URL";

/// The steps of a replacement of the private CA.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum NewCa {
    /// Makes another CA, and adds its certificate to ca.pem
    Begin,
    /// Issues the certificates by the new CA, when all hosts trust both
    Switch,
    /// Takes the old CA's certificate out of ca.pem
    End,
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A PostgreSQL administrator's connection string, to create the service's role and database [default:
    /// PostgreSQL on this machine]. With a password, use the variable: other users see arguments
    #[arg(long, value_name = "URL", env = ADMIN_URL, hide_env_values = true)]
    pub admin_url: Option<String>,
    /// The service's connection string, if role and database exist. With a password, use the variable
    #[arg(
        long,
        value_name = "URL",
        env = DATABASE_URL,
        hide_env_values = true,
        conflicts_with = "admin_url"
    )]
    pub database_url: Option<String>,
    /// What role and database are called [default: svc]
    #[arg(long, value_name = "NAME")]
    pub database: Option<String>,
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
    /// Where the private CA's key is kept: a folder that the service cannot read, or a medium that is away between two runs.
    /// A key beside the settings moves there [default: beside the settings]
    #[arg(long, value_name = "FOLDER", conflicts_with = "tls_cert")]
    pub ca_folder: Option<PathBuf>,
    /// Replaces the private CA in three runs, between which ca.pem is copied to all hosts: docs/operating.md
    #[arg(long, value_name = "STEP", conflicts_with = "tls_cert")]
    pub new_ca: Option<NewCa>,
    /// The web console, too: its role, its settings and a certificate of the private CA
    #[arg(long)]
    pub console: bool,
    /// The public URL of the console, which it implies [default: https://NAME:3000]
    #[arg(long, value_name = "URL")]
    pub console_url: Option<Url>,
    /// Where the console's settings go, with a copy of the private CA's certificate [default: beside the service's]
    #[arg(long, value_name = "FOLDER")]
    pub console_folder: Option<PathBuf>,
    /// A proxy on this machine ends TLS for the console, which serves HTTP on the loopback address
    #[arg(long)]
    pub console_behind_proxy: bool,
    /// The console serves HTTP to the network: passwords can be read on their way
    #[arg(long, conflicts_with = "console_behind_proxy")]
    pub insecure_console: bool,
    /// The user that runs the service, which may read its keys
    #[arg(long, value_name = "NAME", default_value = "svc-ingest")]
    pub user: String,
    /// The user that runs the console, which may read its key
    #[arg(long, value_name = "NAME", default_value = "svc-console")]
    pub console_user: String,
    /// Make no first token: for a run whose output goes to a log
    #[arg(long)]
    pub no_token: bool,
    /// Ask nothing, and use the defaults
    #[arg(long)]
    pub yes: bool,
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

impl Args {
    pub fn wants_console(&self) -> bool {
        self.console
            || self.console_url.is_some()
            || self.console_folder.is_some()
            || self.console_behind_proxy
            || self.insecure_console
    }
}
