//! `svc-ingest dev`: the real thing on one machine, with nothing to prepare.
//!
//! A PostgreSQL server of its own, certificates and a signing key live in one
//! folder and are used again by the next start. The server is a child that dies
//! with this process, however that ends.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use svc_sandbox::{Identity, Postgres, PostgresOptions};

use super::{output::print, serve};
use crate::{
    config::{Config, Log},
    server::Server,
    telemetry,
};

const DATABASE: &str = "svc";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where everything is kept [default: /var/lib/svc-ingest-dev for root, else ~/.local/share/svc-ingest-dev]
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    telemetry::init(&Log::from_env());
    serve::raise_file_limit();
    let folder = args.data_dir.map_or_else(default_folder, Ok)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let postgres = start_postgres(&folder).await?;
    let environment = environment(&folder, &postgres)?;
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = Config::read(&|name| set(name).or_else(|| environment.get(name).cloned()))?;
    let server = Server::bind(config).await?;
    print(&screen(&folder, &postgres, &server)?)?;
    serve::until_signalled(server).await
}

/// Root's home is closed to the user that PostgreSQL must run as, so root's data stands elsewhere.
fn default_folder() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/svc-ingest-dev".into());
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let base = data
        .or(home)
        .context("HOME is not set: name a folder with --data-dir")?;
    Ok(base.join("svc-ingest-dev"))
}

async fn start_postgres(folder: &Path) -> anyhow::Result<Postgres> {
    let options = PostgresOptions {
        data_dir: Some(folder.join("postgres")),
        durable: true,
        ..PostgresOptions::default()
    };
    let postgres = Postgres::start(options).await?;
    let exists = format!("SELECT datname FROM pg_database WHERE datname = '{DATABASE}'");
    if !postgres.psql("postgres", &exists).await?.contains(DATABASE) {
        postgres.create_database(DATABASE, None).await?;
    }
    Ok(postgres)
}

/// What `dev` decides where the environment does not.
fn environment(
    folder: &Path,
    postgres: &Postgres,
) -> anyhow::Result<HashMap<&'static str, OsString>> {
    let (certificate, key) = certificate(folder)?;
    Ok(HashMap::from([
        ("DATABASE_URL", postgres.url(DATABASE).into()),
        ("INGEST_TLS_CERT", certificate.into()),
        ("INGEST_TLS_KEY", key.into()),
        ("INGEST_JWT_KEY_FILE", folder.join("jwt_key.pem").into()),
        ("INGEST_BIND_ADDRESS", "127.0.0.1".into()),
    ]))
}

fn certificate(folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    Identity::server(&["localhost", "127.0.0.1"])?.write(folder, "server")
}

fn screen(folder: &Path, postgres: &Postgres, server: &Server) -> anyhow::Result<String> {
    let (grpc, http) = (server.grpc_address()?, server.http_address()?);
    let url = postgres.url(DATABASE);
    let folder = folder.display();
    Ok(format!(
        "
  svc-ingest {version}, a whole system on this machine. Ctrl-C stops it; the data stays.

    agents      https://localhost:{grpc_port}          gRPC over mutual TLS
    health      http://{http}/healthz
    key         http://{http}/.well-known/jwks.json
    metrics     http://{http}/metrics
    database    {url}
    data        {folder}   (delete it to begin anew)

  Try next, in another terminal:

    curl http://{http}/healthz
    curl http://{http}/.well-known/jwks.json
    export DATABASE_URL={url}
    INGEST_JWT_KEY_FILE={folder}/jwt_key.pem svc-ingest key show
    psql \"$DATABASE_URL\" -c 'TABLE ingest_instances'
",
        version = crate::VERSION,
        grpc_port = grpc.port(),
    ))
}
