//! All instances of a lab end at once and are started again: how soon they serve, when all agents are back, and whether
//! one of them is shown as offline meanwhile.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{load::Load, sizes::Scale, system::SystemKind};
use crate::{
    figures::{Figures, Goal, Table},
    lab::Settings,
};

/// The default interval of the service.
const INTERVAL: Duration = Duration::from_secs(30);
/// The longest wait that is left to an agent of a large fleet when the instances serve again, at most [`UP_WITHIN`]
/// seconds after they ended.
const LONGEST_BACKOFF: Duration = Duration::from_secs(55);
/// An instance that stops gives its agents drain slots: so many a second, over five minutes at most.
pub const DRAIN_ARRIVALS: f64 = 200.0;
pub const DRAIN_SPREAD: Duration = Duration::from_mins(5);
/// Longer than the graces of agents after an outage: a lease of 15 s, and 150 s. Before that nobody can be swept.
pub const GRACES: Duration = Duration::from_secs(180);
const UP_WITHIN: f64 = 5.0;
/// For agents that are late.
const TIMEOUT: Duration = Duration::from_mins(10);
const COLUMNS: [&str; 4] = [
    "all serve after s",
    "all back after s",
    "at the latest after s",
    "shown offline",
];

/// How all instances end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM: the agents get drain slots.
    Stop,
    /// SIGKILL: all streams end at once.
    Kill,
}

/// When all agents must have a stream and an acknowledgement again, counted from when all instances serve.
fn back_within(ending: Ending, interval: Duration, agents_per_instance: usize) -> Duration {
    let slots = match ending {
        Ending::Kill => Duration::ZERO,
        Ending::Stop => Duration::from_secs_f64(agents_per_instance as f64 / DRAIN_ARRIVALS),
    };
    LONGEST_BACKOFF + interval + slots.min(DRAIN_SPREAD)
}

/// The only instance is stopped and started, then killed and started; all of three are stopped and started.
pub async fn stage(scale: Scale) -> anyhow::Result<Figures> {
    let stop = (Ending::Stop, GRACES);
    let mut figures = measured(1, scale, &[stop, (Ending::Kill, GRACES)]).await?;
    let three = measured(3, scale, &[stop]).await?;
    for table in three.tables {
        figures.tables[0].rows.extend(table.rows);
    }
    figures.goals.extend(three.goals);
    Ok(figures)
}

async fn measured(
    instances: usize,
    scale: Scale,
    rounds: &[(Ending, Duration)],
) -> anyhow::Result<Figures> {
    let site = SystemKind::Service(Settings {
        instances,
        interval: INTERVAL,
        durable: true,
    });
    restarts(site, scale.agents(18_000), INTERVAL, rounds).await
}

/// Restarts all instances in each round, and watches until all agents are back, for at least this long: an agent that
/// is not back when the graces have ended is offline.
pub async fn restarts(
    site: SystemKind,
    agents: u32,
    each: Duration,
    rounds: &[(Ending, Duration)],
) -> anyhow::Result<Figures> {
    let mut load = Load::start(site, agents, each).await?;
    let mut table = Table::new(format!("{agents} agents"), &COLUMNS);
    let mut goals = Vec::new();
    for (ending, watch) in rounds {
        let lab = load.system.lab()?;
        // The planner's statistics are from when all agents were connected.
        lab.sql("ANALYZE").await?;
        let before = lab.times_offline().await?;
        let (signal, ended) = match ending {
            Ending::Stop => (Signal::TERM, "stopped"),
            Ending::Kill => (Signal::KILL, "killed"),
        };
        let up = lab.restart_all(signal).await?;
        let (serving_at, mark) = (Instant::now(), load.fleet.mark()?);
        let back = load.fleet.all_back(mark, TIMEOUT).await?;
        sleep_until(serving_at + *watch).await;
        let offline = lab.times_offline().await?.saturating_sub(before);
        let instances = lab.instances.len();
        let limit = back_within(*ending, each, (agents as usize).div_ceil(instances));
        let name = format!("all of {instances} {ended}");
        let [up, back, limit] = [up, back, limit].map(|time| time.as_secs_f64());
        table = table.row(&name, [up, back, limit, offline as f64]);
        goals.extend([
            Goal::at_most(format!("{name}: all serve, s"), up, UP_WITHIN),
            Goal::at_most(format!("{name}: all back, s"), back, limit),
            Goal::never(format!("{name}: went offline"), offline),
        ]);
    }
    load.finish().await?;
    Ok(Figures {
        tables: vec![table],
        goals,
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use svc_proto::contract::{Backoff, BackoffBounds};

    use super::*;

    /// How long an agent whose calls all fail for `away` waits after that.
    fn left_after(away: Duration, random: &mut StdRng) -> Duration {
        let (mut backoff, mut at) = (Backoff::default(), Duration::ZERO);
        while at < away {
            at += backoff.next(BackoffBounds::STANDARD, None, random.random());
        }
        at - away
    }

    /// By the contract's backoff, which the real and the virtual agents have: of twenty fleets at most one has an agent that
    /// waits longer, and it is not much less in most of them.
    #[test]
    fn the_longest_backoff_is_that_of_a_large_fleet_after_a_restart() {
        let mut random = StdRng::seed_from_u64(1);
        let away = Duration::from_secs_f64(UP_WITHIN);
        let mut fleet = || {
            let left = (0..18_000).map(|_| left_after(away, &mut random));
            left.max().unwrap_or_default()
        };
        let mut longest = [(); 20].map(|()| fleet());
        longest.sort();
        assert!(longest[18] <= LONGEST_BACKOFF, "{longest:?}");
        assert!(longest[10] * 3 > LONGEST_BACKOFF, "{longest:?}");
    }

    #[test]
    fn the_time_to_be_back_follows_from_backoff_interval_and_drain_slots() {
        let of = |ending, agents| back_within(ending, INTERVAL, agents).as_secs();
        assert_eq!(of(Ending::Kill, 18_000), 85);
        assert_eq!(of(Ending::Stop, 18_000), 85 + 90);
        assert_eq!(of(Ending::Stop, 1_000_000), 85 + 300);
    }
}
