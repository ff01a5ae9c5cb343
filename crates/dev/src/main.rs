//! `svc-dev`: a complete system on one machine, without any preparation.
//!
//! It starts PostgreSQL, and runs the programs in its own folder as people run them: by command lines, variables and
//! ports. Data, certificates, keys and a token share one folder, and the next start uses them again. All that it starts
//! ends with it, however it ends. It is a program of its own because no shipped program may link the sandbox.

mod agent;
mod console;
mod database;
mod programs;
mod service;
mod view;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use console::Console;
use database::Database;
use service::Service;

/// How long the agent may take to say goodbye to the service and exit.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the service may take to stop. Its own limit is INGEST_DRAIN_TIMEOUT.
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

/// Run a whole system on this machine: PostgreSQL, the service, the console and an agent
#[derive(Debug, Parser)]
#[command(name = "svc-dev", version)]
struct Args {
    /// Where the data goes [default: /var/lib/svc-ingest-dev for root, otherwise ~/.local/share/svc-ingest-dev]
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("svc-dev: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The agent stops before the service, which would otherwise wait for it: a drained agent has no other instance to go to.
async fn run(args: Args) -> anyhow::Result<()> {
    let folder = args.data_dir.map_or_else(default_folder, Ok)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let database = Database::start(&folder).await?;
    let service = Service::new(&folder, &database.url())?;
    let serving = service.start().await?;
    let facts = facts(&service, &database.url()).await?;
    let agent = agent::start(&service)?;
    let console = Console::start(&service, &database.web_url()).await?;
    let screen = [
        facts,
        about_agent(agent.is_some(), &agent::log_file(&service)),
        about_console(console.as_ref(), &console::log_file(&service)),
        about_aside(database.aside.as_deref()),
    ]
    .join("\n");
    tokio::select! {
        stop = stop_requested() => stop?,
        shown = view::show(&service, &screen) => shown?,
        () = service::ended(&serving) => {}
    }
    if let Some(agent) = agent {
        agent.stop(Signal::TERM, GOODBYE_PATIENCE);
    }
    serving.stop(Signal::TERM, DRAIN_PATIENCE);
    service.verdict(&serving)
}

/// Waits for a signal. A second one ends this process at once, and its children with it.
async fn stop_requested() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    either(&mut terminate, &mut interrupt).await;
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        std::process::exit(1);
    });
    Ok(())
}

async fn either(terminate: &mut unix::Signal, interrupt: &mut unix::Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// PostgreSQL runs as an unprivileged user, who cannot enter root's home: root's data goes elsewhere.
fn default_folder() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/svc-ingest-dev".into());
    }
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let base = data
        .or(home)
        .context("HOME is not set: name a folder with --data-dir")?;
    Ok(base.join("svc-ingest-dev"))
}

/// The addresses, the token, and what to try next.
async fn facts(service: &Service, database_url: &str) -> anyhow::Result<String> {
    let version = service.run(&["--version"]).await?;
    let token = service.token().await?;
    let (grpc, http) = (service.grpc_address(), service.http_address());
    let folder = service.folder.display();
    let ours = PathBuf::from(env::args_os().next().unwrap_or_default());
    let program = ours.with_file_name("svc-ingest");
    let program = program.display();
    Ok(format!(
        "
  {version}, a complete system on this machine. Ctrl-C stops it; the data stays.

    agents      https://{grpc}     gRPC over mutual TLS; certificate {folder}/server.crt
    health      http://{http}/healthz
    key         http://{http}/.well-known/jwks.json
    metrics     http://{http}/metrics
    database    {database_url}
    token       {token}     (admits agents at once)
    data        {folder}     (delete it to start over)

  Try next, in another terminal:

    curl http://{http}/healthz
    export DATABASE_URL={database_url}
    {program} status
    {program} token create --label web --max-uses 20
    {program} host list --watch
"
    ))
}

fn about_agent(runs: bool, log_file: &Path) -> String {
    let log_file = log_file.display();
    match runs {
        true => format!("  This machine's agent runs; its log is {log_file}."),
        false => {
            "  No agent runs: there is no svc-agent beside this program (`cargo build` makes it)."
                .into()
        }
    }
}

fn about_console(console: Option<&Console>, log_file: &Path) -> String {
    let log_file = log_file.display();
    match console {
        Some(console) => format!(
            "  The web console: {}\n  (the link signs in once; its log is {log_file})",
            console.link
        ),
        None => "  No console runs: there is no svc-console beside this program.".into(),
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
