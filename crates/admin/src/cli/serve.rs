//! `svc-ingest serve`: reads the environment, and runs the service until a signal stops it.

use std::process::ExitCode;

use svc_common::signals::stop_on_signals;
use svc_ingest::{
    config::{Config, log_settings},
    server::{RunError, Server},
};

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
