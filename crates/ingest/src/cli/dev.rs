//! `svc-ingest dev`: a complete system on one machine, without any preparation.
//!
//! A PostgreSQL server, certificates, a signing key, a token and this machine's agent share one folder, and the next
//! start uses them again. PostgreSQL and the agent are child processes that end with this one, however it ends.

mod agent;
mod console;
mod database;
mod view;

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use svc_sandbox::Identity;
use svc_store::{NewToken, Store, StoreOptions};
use tokio_util::sync::CancellationToken;

use super::{serve, token};
use crate::{
    config::{Config, log_settings},
    server::Server,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the data goes [default: /var/lib/svc-ingest-dev for root, otherwise ~/.local/share/svc-ingest-dev]
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    serve::raise_file_limit();
    let folder = args.data_dir.map_or_else(default_folder, Ok)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let database = database::Database::start(&folder).await?;
    log(&folder)?; // Its file must not move with the folder.
    let environment = environment(&folder, database.url())?;
    let config = Config::read(&|name| look_up(&environment, name))?;
    let store = Store::new(config.database.url.clone(), StoreOptions::default())?;
    let token = enrolment_token(&folder, &store).await?;
    let certificate = config.grpc.tls.certificate_file.clone();
    let server = Server::bind(config).await?;
    let agent = agent::AgentSettings {
        folder: &folder,
        port: server.grpc_address()?.port(),
        certificate: &certificate,
    };
    let log_file = agent.log_file();
    let agent = agent.start()?;
    let console = console::ConsoleSettings {
        folder: &folder,
        database_url: database
            .url()
            .replacen("svc@", &format!("{}@", console::ROLE), 1),
        grpc_port: server.grpc_address()?.port(),
        http: server.http_address()?,
        certificate: &certificate,
    };
    let console_log = console.log_file();
    let console = console.start().await?;
    let screen = screen(&folder, &database.url(), &server, &token)?;
    let screen = format!(
        "{screen}\n{}\n{}\n{}",
        about_agent(agent.is_some(), &log_file),
        about_console(console.as_ref(), &console_log),
        about_aside(database.aside.as_deref())
    );
    let ended = run_and_show(server, agent, view::View { store, screen }).await;
    drop(console);
    ended
}

/// Runs the server until a signal. The view may end earlier, when its reader closes the pipe. The agent stops before the
/// server, which would otherwise wait for it: a drained agent has no other instance to go to.
async fn run_and_show(
    server: Server,
    agent: Option<agent::Agent>,
    view: view::View,
) -> anyhow::Result<ExitCode> {
    let (asked, stop) = (serve::stop_on_signals()?, CancellationToken::new());
    let stopping = async {
        asked.cancelled().await;
        if let Some(agent) = agent {
            agent.stop().await;
        }
        stop.cancel();
        std::future::pending().await
    };
    let showing = async {
        view.run().await?;
        std::future::pending().await
    };
    tokio::select! {
        ended = server.run(stop.clone()) => serve::report(ended),
        failed = showing => failed,
        never = stopping => never,
    }
}

/// On a terminal the view takes the screen, so the log goes to a file.
fn log(folder: &Path) -> anyhow::Result<()> {
    let log = log_settings();
    match view::is_drawn() {
        false => log.start(),
        true => {
            let path = folder.join("service.log");
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            log.start_in(file);
        }
    }
    Ok(())
}

fn about_agent(runs: bool, log_file: &Path) -> String {
    let log_file = log_file.display();
    match runs {
        true => format!("  This machine's agent runs; its log is {log_file}."),
        false => {
            "  No agent runs: there is no svc-agent beside this binary (`cargo build` makes it)."
                .into()
        }
    }
}

fn about_console(console: Option<&console::Console>, log_file: &Path) -> String {
    let log_file = log_file.display();
    match console {
        Some(console) => format!(
            "  The web console: {}\n  (the link signs in once; its log is {log_file})",
            console.link
        ),
        None => "  No console runs: there is no svc-console beside this binary.".into(),
    }
}

fn about_aside(aside: Option<&Path>) -> String {
    aside.map_or_else(String::new, |aside| {
        let aside = aside.display();
        format!(
            "  The data of an unreleased version, which this one cannot use, are now in {aside}.\n"
        )
    })
}

/// The environment overrides our settings, except for the database: `dev` has its own.
fn look_up(ours: &HashMap<&'static str, OsString>, name: &str) -> Option<OsString> {
    let set = std::env::var_os(name).filter(|value| !value.is_empty());
    match name {
        "DATABASE_URL" => ours.get(name).cloned(),
        _ => set.or_else(|| ours.get(name).cloned()),
    }
}

/// PostgreSQL runs as an unprivileged user, who cannot enter root's home: root's data goes elsewhere.
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

/// An auto-approve token for trials, created once and kept in the folder.
async fn enrolment_token(folder: &Path, store: &Store) -> anyhow::Result<String> {
    let file = folder.join("enrolment_token");
    if let Ok(known) = fs::read_to_string(&file) {
        return Ok(known.trim().to_owned());
    }
    store.migrate().await?;
    let new = NewToken {
        label: "dev".into(),
        auto_approve: true,
        allow_reinstall: true,
        max_uses: 1000,
        expires_in: None,
        labels: "env=dev".parse()?,
        created_by: "svc-ingest dev".into(),
    };
    let (token, _) = token::add(store, &new).await?;
    let mut kept = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)?;
    writeln!(kept, "{}", token.expose())?;
    Ok(token.expose().to_owned())
}

/// The settings that `dev` chooses where the environment does not.
fn environment(
    folder: &Path,
    database_url: String,
) -> anyhow::Result<HashMap<&'static str, OsString>> {
    let (certificate, key) = certificate(folder)?;
    Ok(HashMap::from([
        ("DATABASE_URL", database_url.into()),
        ("INGEST_TLS_CERT", certificate.into()),
        ("INGEST_TLS_KEY", key.into()),
        ("INGEST_JWT_KEY_FILE", folder.join("jwt_key.pem").into()),
        ("INGEST_BIND_ADDRESS", "127.0.0.1".into()),
        ("INGEST_HEARTBEAT_INTERVAL", "5s".into()),
        ("INGEST_WEB_ROLE", console::ROLE.into()),
    ]))
}

fn certificate(folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    Identity::server(&["localhost", "127.0.0.1"])?.write(folder, "server")
}

fn screen(folder: &Path, url: &str, server: &Server, token: &str) -> anyhow::Result<String> {
    let (grpc, http) = (server.grpc_address()?, server.http_address()?);
    let folder = folder.display();
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "svc-ingest".into());
    Ok(format!(
        "
  svc-ingest {version}, a complete system on this machine. Ctrl-C stops it; the data stays.

    agents      https://localhost:{grpc_port}     gRPC over mutual TLS; certificate {folder}/server.crt
    health      http://{http}/healthz
    key         http://{http}/.well-known/jwks.json
    metrics     http://{http}/metrics
    database    {url}
    token       {token}     (admits agents at once)
    data        {folder}     (delete it to start over)

  Try next, in another terminal:

    curl http://{http}/healthz
    export DATABASE_URL={url}
    {program} status
    {program} token create --label web --max-uses 20
    {program} host list --watch
",
        version = crate::VERSION,
        grpc_port = grpc.port(),
    ))
}
