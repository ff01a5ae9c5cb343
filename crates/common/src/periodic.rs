//! Waiting that ends when a part is asked to stop: the loop of every background part that works in passes.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Ticks at once and then every period, until the stop.
///
/// `while periodic.tick().await { pass().await }` is the loop. A pass that takes longer than the period
/// delays the next one instead of causing a burst. The stop takes effect between passes; a pass that may
/// be dropped halfway runs inside [`Periodic::until_stopped`].
#[derive(Debug)]
pub struct Periodic {
    interval: Interval,
    stop: CancellationToken,
}

impl Periodic {
    pub fn new(period: Duration, stop: CancellationToken) -> Self {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, stop }
    }

    /// Waits for the next tick; `false` means stop.
    pub async fn tick(&mut self) -> bool {
        self.stop
            .run_until_cancelled(self.interval.tick())
            .await
            .is_some()
    }

    /// The next tick comes after `wait` instead of after the period.
    pub fn tick_after(&mut self, wait: Duration) {
        self.interval.reset_after(wait);
    }

    /// Runs a pass that may be dropped halfway when the stop comes; `None` means that it was.
    pub async fn until_stopped<T>(&self, pass: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(pass).await
    }
}

/// Waits until `deadline`; `false` means that the stop came first.
pub async fn sleep_until(deadline: Instant, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep_until(deadline))
        .await
        .is_some()
}

/// Waits for `pause`; `false` means that the stop came first.
pub async fn sleep(pause: Duration, stop: &CancellationToken) -> bool {
    sleep_until(Instant::now() + pause, stop).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ticks_come_at_once_and_every_period_until_the_stop() {
        let (stop, began) = (CancellationToken::new(), Instant::now());
        let mut periodic = Periodic::new(Duration::from_secs(5), stop.clone());
        assert!(periodic.tick().await && periodic.tick().await);
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        periodic.tick_after(Duration::from_secs(1));
        assert!(periodic.tick().await);
        assert_eq!(began.elapsed(), Duration::from_secs(6));
        assert!(sleep(Duration::from_secs(1), &stop).await);
        stop.cancel();
        assert!(!periodic.tick().await);
        assert!(!sleep(Duration::from_secs(1), &stop).await);
    }
}
