//! Bounded waiting for a condition.
//!
//! Tests do not sleep for a guessed time. They name the condition and the longest wait, so that a
//! fast machine loses no time and a failure names what did not happen.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_millis(20);

/// Repeats `check` until it is true. After `patience`, the error names `what`.
pub async fn eventually(
    what: &str,
    patience: Duration,
    mut check: impl AsyncFnMut() -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    while !check().await {
        anyhow::ensure!(Instant::now() < deadline, "not within {patience:?}: {what}");
        sleep(PAUSE).await;
    }
    Ok(())
}
