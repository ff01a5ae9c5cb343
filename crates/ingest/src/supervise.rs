//! The long-lived parts of the process, and how they end together.
//!
//! Parts come in two rows. When the process is asked to stop, the front row goes
//! first (it holds the clients), the back row after it (it holds what the front
//! row still needs: the lease, the health page). A part that ends before it was
//! asked to takes the whole process with it, and its reason is the process's.

use std::{future::Future, time::Duration};

use anyhow::{Context, anyhow};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

/// How long the back row may take to end.
const BACK_ROW_DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Parts {
    /// Asks the front row to end.
    pub stop: CancellationToken,
    /// Asks the back row to end.
    pub last: CancellationToken,
    front: JoinSet<anyhow::Result<()>>,
    back: JoinSet<anyhow::Result<()>>,
}

impl Parts {
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            stop,
            last: CancellationToken::new(),
            front: JoinSet::new(),
            back: JoinSet::new(),
        }
    }

    pub fn front(
        &mut self,
        name: &'static str,
        part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.front.spawn(named(name, self.stop.clone(), part));
    }

    pub fn back(
        &mut self,
        name: &'static str,
        part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.back.spawn(named(name, self.last.clone(), part));
    }

    /// Runs until asked to stop, or until a part ends; then ends all parts, the
    /// front row within `drain`.
    pub async fn run(mut self, drain: Duration, draining: impl FnOnce()) -> anyhow::Result<()> {
        let early = self.first_end().await;
        draining();
        self.stop.cancel();
        let front = finish(&mut self.front, drain).await;
        self.last.cancel();
        let back = finish(&mut self.back, BACK_ROW_DEADLINE).await;
        early.and(front).and(back)
    }

    async fn first_end(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            Some(ended) = self.front.join_next() => ended.unwrap_or_else(|error| Err(error.into())),
            Some(ended) = self.back.join_next() => ended.unwrap_or_else(|error| Err(error.into())),
        }
    }
}

/// A part's own result, under its name; ending unasked is an error too, and so is a panic.
async fn named(
    name: &'static str,
    asked: CancellationToken,
    part: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<()> {
    match tokio::spawn(part).await {
        Ok(Ok(())) if asked.is_cancelled() => Ok(()),
        Ok(Ok(())) => Err(anyhow!("{name} ended by itself")),
        Ok(Err(error)) => Err(error).context(format!("{name} failed")),
        Err(panicked) => Err(panicked).context(format!("{name} broke")),
    }
}

/// Waits for all of a row; what has not ended by the deadline is ended here.
async fn finish(row: &mut JoinSet<anyhow::Result<()>>, deadline: Duration) -> anyhow::Result<()> {
    let all = async {
        let mut result = Ok(());
        while let Some(ended) = row.join_next().await {
            result = result.and(ended.unwrap_or_else(|error| Err(error.into())));
        }
        result
    };
    match timeout(deadline, all).await {
        Ok(result) => result,
        Err(_) => {
            tracing::warn!(
                parts = row.len(),
                "parts did not end in time and are cut off"
            );
            row.shutdown().await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(parts: Parts) -> String {
        let outcome = timeout(
            Duration::from_secs(30),
            parts.run(Duration::from_millis(50), || ()),
        );
        outcome
            .await
            .expect("the parts end")
            .map_or_else(|error| format!("{error:#}"), |()| "ok".into())
    }

    async fn until(token: CancellationToken) -> anyhow::Result<()> {
        token.cancelled().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_stop_ends_both_rows_in_order() {
        let stop = CancellationToken::new();
        let mut parts = Parts::new(stop.clone());
        let last = parts.last.clone();
        parts.front("front", async move {
            stop.cancelled().await;
            assert!(!last.is_cancelled(), "the back row outlives the front row");
            Ok(())
        });
        parts.back("back", until(parts.last.clone()));
        parts.stop.cancel();
        assert_eq!(run(parts).await, "ok");
    }

    #[tokio::test]
    async fn a_part_that_fails_ends_the_rest_with_its_reason() {
        let mut parts = Parts::new(CancellationToken::new());
        parts.front("front", until(parts.stop.clone()));
        parts.back("lease", async { Err(anyhow!("lost")) });
        assert_eq!(run(parts).await, "lease failed: lost");
    }

    #[tokio::test]
    async fn a_part_that_ends_unasked_or_panics_is_a_failure() {
        let mut parts = Parts::new(CancellationToken::new());
        parts.back("lease", async { Ok(()) });
        assert_eq!(run(parts).await, "lease ended by itself");
        let mut parts = Parts::new(CancellationToken::new());
        parts.front("listener", async { panic!("on purpose") });
        assert!(run(parts).await.starts_with("listener broke"));
    }

    #[tokio::test]
    async fn a_part_that_will_not_end_is_cut_off() {
        let mut parts = Parts::new(CancellationToken::new());
        parts.front("stuck", std::future::pending());
        parts.stop.cancel();
        assert_eq!(run(parts).await, "ok");
    }
}
