//! `svc-ingest serve`: reads the environment, and runs the service until a signal stops it.

use std::process::ExitCode;

use svc_ingest::{
    config::{Config, log_settings},
    server::{RunError, Server},
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

pub async fn run() -> anyhow::Result<ExitCode> {
    log_settings().start();
    raise_file_limit();
    let server = Server::bind(Config::from_env()?).await?;
    report(server.run(stop_on_signals()?).await)
}

/// The exit code of a run.
pub(super) fn report(outcome: Result<(), RunError>) -> anyhow::Result<ExitCode> {
    match outcome {
        Ok(()) => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        Err(RunError::Start(error)) => Err(error.into_report()),
        Err(RunError::Part(error)) => Err(error),
    }
}

/// The first signal requests a clean stop; a second one ends the process at once.
pub(super) fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let requested = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let signal = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal, "stopping");
        requested.cancel();
        let signal = either(&mut terminate, &mut interrupt).await;
        tracing::warn!(signal, "ending at once");
        std::process::exit(1);
    });
    Ok(stop)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// Raises the limit of open files to the hard limit: every connected agent needs one.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}
