//! Draining: every agent of this instance is asked to reconnect elsewhere, each after a delay of its own
//! (its drain slot), so that the restart of one instance never floods the others.

use std::time::Duration;

use tokio::time::Instant;

use super::{EndReason, Session, SessionTable};

/// Drain slots are spread over at most this long.
const DRAIN_SPREAD: Duration = Duration::from_mins(5);
/// The rate at which drained agents arrive at the other instances, per second.
const ARRIVALS: f64 = 200.0;
const CHECK: Duration = Duration::from_millis(50);

/// Asks all agents to leave, waits until they have left, and ends the sessions that remain after `time`.
pub async fn drain(sessions: &SessionTable, time: Duration) {
    let asked = ask_to_leave(sessions);
    let deadline = Instant::now() + time;
    while !sessions.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(CHECK).await;
    }
    for (session, slot) in asked {
        session.inbox.end(EndReason::Drained { slot });
    }
    let slot = Duration::ZERO;
    for latecomer in sessions.all() {
        latecomer.inbox.end(EndReason::Drained { slot });
    }
}

/// Gives every session a drain slot.
pub(super) fn ask_to_leave(sessions: &SessionTable) -> Vec<(Session, Duration)> {
    let all = sessions.all();
    let slots = slots(all.len());
    let asked: Vec<(Session, Duration)> = all.into_iter().zip(slots).collect();
    for (session, slot) in &asked {
        session.inbox.drain(*slot);
    }
    asked
}

/// `count` delays, evenly spread at the rate that the other instances can take, but over no longer than
/// the drain spread.
fn slots(count: usize) -> impl Iterator<Item = Duration> {
    let wanted = Duration::from_secs_f64(count as f64 / ARRIVALS);
    let step = wanted.min(DRAIN_SPREAD).div_f64(count.max(1) as f64);
    (0..count).map(move |index| step.mul_f64(index as f64 + rand::random::<f64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_stay_at_the_rate_in_every_second() {
        let slots: Vec<Duration> = slots(2000).collect();
        for second in 0..10 {
            let arrivals = slots.iter().filter(|slot| slot.as_secs() == second).count();
            assert!(
                (190..=210).contains(&arrivals),
                "{arrivals} in second {second}"
            );
        }
        assert!(slots.iter().all(|slot| *slot < Duration::from_secs(10)));
    }

    #[test]
    fn slots_end_with_the_drain_spread_however_many_agents_there_are() {
        assert!(slots(1_000_000).all(|slot| slot <= DRAIN_SPREAD));
        assert_eq!(slots(0).count(), 0);
    }
}
