//! `svc-ingest serve`: the service, from its environment to its end.

use std::{io, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, log_settings},
    server::{RunError, Server},
    telemetry,
};

pub async fn run() -> anyhow::Result<ExitCode> {
    telemetry::init(&log_settings());
    raise_file_limit();
    let server = Server::bind(Config::from_env()?).await?;
    until_signalled(server).await
}

/// Runs a bound server until SIGTERM or SIGINT.
pub async fn until_signalled(server: Server) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signals()?;
    report(server.run(stop).await)
}

/// How a run ended, as an exit code.
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

/// The first signal asks for a clean stop; a second one ends the process at once.
pub(super) fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(signal, "stopping");
        asked.cancel();
        let signal = signals.next().await;
        tracing::warn!(signal, "ending at once");
        std::process::exit(1);
    });
    Ok(stop)
}

/// The two signals that mean 'stop'.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Every agent is a file descriptor: take as many as the hard limit allows.
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
