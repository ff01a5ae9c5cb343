//! `svc-agent run`: runs the agent until a signal.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::{Agent, Surroundings},
    config::{Config, Flags},
    telemetry,
};

pub(super) async fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let config = Config::from_env(flags)?;
    telemetry::init(config.log);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let agent = Agent::open(config, Surroundings::default())?;
    agent.run(stop_on_signals()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// The first signal requests a clean stop; a second one exits immediately.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if asked.is_cancelled() {
                std::process::exit(1);
            }
            asked.cancel();
        }
    });
    Ok(stop)
}
