//! Waiting for something to become true, for a bounded time.
//!
//! Tests never sleep for a guessed while: they say what they wait for and for how long at most, so
//! that a fast machine is not held up and a failure names what never happened.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_millis(20);

/// Asks `check` again and again until it is true; an error naming `what` after `patience`.
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
