//! `svc-agent run`: continues as a newer version, if there is one; otherwise runs the agent until a signal.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::on_one_thread;
use crate::{
    agent::{Agent, Surroundings},
    config::{Config, Flags},
    telemetry,
    update::{self, launcher},
};

pub(super) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let config = Config::from_env(flags)?;
    telemetry::init(config.log, update::trial_log(&config).as_deref());
    let launch = launcher::launch(&config);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let surroundings = Surroundings {
        launch: launch.clone(),
        ..Surroundings::default()
    };
    let restart = on_one_thread(async {
        let agent = Agent::open(config, surroundings)?;
        let updates = agent.updates();
        agent.run(stop_on_signals()?).await?;
        Ok(updates.restart().is_some())
    })?;
    // All files are closed and the folder is free now.
    match launch.filter(|_| restart) {
        None => Ok(ExitCode::SUCCESS),
        Some(launch) => Err(launch.again()).context("the installed program cannot be started"),
    }
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
