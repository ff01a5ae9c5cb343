//! All instances of a lab end at once and are started again: how soon they serve, when all agents are back, and whether
//! one of them is shown as offline meanwhile.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use crate::{
    fleet::{Fleet, format_time, note},
    lab::Lab,
};

/// The longest backoff that an agent of a large fleet has reached when the instances serve again, a few seconds after
/// they ended.
const LONGEST_BACKOFF: Duration = Duration::from_secs(55);
/// An instance that stops gives its agents drain slots: so many a second, over five minutes at most.
const DRAIN_ARRIVALS: f64 = 200.0;
const DRAIN_SPREAD: Duration = Duration::from_mins(5);
/// Longer than the graces of agents after an outage: a lease of 15 s, and 150 s. Before that nobody can be swept.
pub const GRACES: Duration = Duration::from_secs(180);
/// For agents that are late: the caller compares the time with `back_within`.
const TIMEOUT: Duration = Duration::from_mins(10);

/// How all instances end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM: the agents get drain slots.
    Stop,
    /// SIGKILL: all streams end at once.
    Kill,
}

/// The times are counted from the start of the instances, and from when all of them serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restarted {
    pub up: Duration,
    pub back: Duration,
    pub back_within: Duration,
    /// How often agents were shown as offline.
    pub offline: u64,
}

/// When all agents must have a stream and an acknowledgement again, counted from when all instances serve.
pub fn back_within(ending: Ending, interval: Duration, agents_per_instance: u64) -> Duration {
    let slots = match ending {
        Ending::Kill => Duration::ZERO,
        Ending::Stop => Duration::from_secs_f64(agents_per_instance as f64 / DRAIN_ARRIVALS),
    };
    LONGEST_BACKOFF + interval + slots.min(DRAIN_SPREAD)
}

/// Restarts all instances, and watches until all agents are back, for at least `watch`.
pub async fn restart_all(
    lab: &mut Lab,
    fleet: &Fleet,
    ending: Ending,
    interval: Duration,
    watch: Duration,
) -> anyhow::Result<Restarted> {
    // The planner's statistics are from when all agents were connected.
    lab.sql("ANALYZE").await?;
    let before = lab.times_offline().await?;
    let up = lab
        .restart_all(match ending {
            Ending::Stop => Signal::TERM,
            Ending::Kill => Signal::KILL,
        })
        .await?;
    let (serving_at, mark) = (Instant::now(), fleet.mark()?);
    let back = fleet.all_back(mark, TIMEOUT).await?;
    let share = fleet.agents().div_ceil(lab.instances.len().max(1) as u64);
    let back_within = back_within(ending, interval, share);
    let (up_text, back_text) = (format_time(up), format_time(back));
    note(&format!(
        "{ending:?}: all serve again after {up_text}, all back after {back_text}"
    ));
    sleep_until(serving_at + watch).await;
    Ok(Restarted {
        up,
        back,
        back_within,
        offline: lab.times_offline().await?.saturating_sub(before),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_be_back_follows_from_backoff_interval_and_drain_slots() {
        let interval = Duration::from_secs(30);
        let of = |ending, agents| back_within(ending, interval, agents).as_secs();
        assert_eq!(of(Ending::Kill, 18_000), 85);
        assert_eq!(of(Ending::Stop, 18_000), 85 + 90);
        assert_eq!(of(Ending::Stop, 1_000_000), 85 + 300);
    }
}
