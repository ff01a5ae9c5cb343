//! The long-lived parts of the process, and how they end together.
//!
//! There are two groups. When the process is asked to stop, the client-facing parts (`front`) end first; the
//! background parts (`back`) end after them, because they hold what the others still need: the lease, the
//! closing of sessions, the health page. A part that ends before it was asked to ends the whole process, and
//! its reason becomes the process's.

use std::{future::Future, time::Duration};

use anyhow::{Context, anyhow};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

/// How long the background parts may take to end.
const BACKGROUND_DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Parts {
    /// Asks the client-facing parts to end.
    pub stop: CancellationToken,
    /// Asks the background parts to end.
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

    /// Runs until asked to stop, or until a part ends. Then ends all parts, the client-facing ones within
    /// `drain`.
    pub async fn run(mut self, drain: Duration, draining: impl FnOnce()) -> anyhow::Result<()> {
        let early = self.first_end().await;
        draining();
        self.stop.cancel();
        let front = finish(&mut self.front, drain).await;
        self.last.cancel();
        let back = finish(&mut self.back, BACKGROUND_DEADLINE).await;
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

/// A part's result, with its name. Ending without being asked is an error too, and so is a panic.
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

/// Waits for a group of parts. Those that have not ended by the deadline are aborted.
async fn finish(group: &mut JoinSet<anyhow::Result<()>>, deadline: Duration) -> anyhow::Result<()> {
    let all = async {
        let mut result = Ok(());
        while let Some(ended) = group.join_next().await {
            result = result.and(ended.unwrap_or_else(|error| Err(error.into())));
        }
        result
    };
    match timeout(deadline, all).await {
        Ok(result) => result,
        Err(_) => {
            tracing::warn!(
                parts = group.len(),
                "parts did not end in time and are aborted"
            );
            group.shutdown().await;
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
    async fn a_stop_ends_client_facing_parts_before_background_parts() {
        let stop = CancellationToken::new();
        let mut parts = Parts::new(stop.clone());
        let last = parts.last.clone();
        parts.front("front", async move {
            stop.cancelled().await;
            assert!(!last.is_cancelled(), "background parts end last");
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
    async fn a_part_that_ends_without_being_asked_or_panics_is_a_failure() {
        let mut parts = Parts::new(CancellationToken::new());
        parts.back("lease", async { Ok(()) });
        assert_eq!(run(parts).await, "lease ended by itself");
        let mut parts = Parts::new(CancellationToken::new());
        parts.front("listener", async { panic!("on purpose") });
        assert!(run(parts).await.starts_with("listener broke"));
    }

    #[tokio::test]
    async fn a_part_that_does_not_end_is_aborted() {
        let mut parts = Parts::new(CancellationToken::new());
        parts.front("stuck", std::future::pending());
        parts.stop.cancel();
        assert_eq!(run(parts).await, "ok");
    }
}
