//! Bounded waiting for a condition.
//!
//! Tests do not sleep for a guessed time. They name the condition and the longest wait, so that a
//! fast machine loses no time and a failure names what did not happen.

use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};

use crate::postgres::query;

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

/// Waits until a statement returns `expected`. The error has what it returned last.
pub async fn becomes(url: &str, sql: &str, expected: &str) -> anyhow::Result<()> {
    let mut found = String::new();
    let waited = eventually(sql, Duration::from_secs(30), async || {
        found = match query(url, sql).await {
            Ok(answer) => answer,
            Err(error) => format!("{error:#}"),
        };
        found == expected
    });
    let waited = waited.await;
    waited.with_context(|| format!("{found:?} instead of {expected:?}"))
}
