//! The signals that end a program.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The first signal requests a clean stop; a second one ends the process at once.
pub fn stop_on_signals() -> io::Result<CancellationToken> {
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
