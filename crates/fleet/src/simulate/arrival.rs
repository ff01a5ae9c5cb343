//! How a fault reaches the agents of a cell: when each loses its stream, and when it first connects again.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng};
use svc_proto::contract::{Backoff, BackoffBounds};

use crate::bench::restart::{DRAIN_ARRIVALS, DRAIN_SPREAD};

/// An agent pings after so many seconds of silence, and leaves the connection without an answer.
const PING_EVERY: f64 = 20.0;
const PING_TIMEOUT: f64 = 10.0;
/// `INGEST_DRAIN_TIMEOUT`: how long a stopping instance waits for its clients.
pub const DRAIN_TIMEOUT: f64 = 8.0;
/// A drain in steps has so many of them.
pub const STEPS: u32 = 100;

#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// All connections end at once, and the agents see it.
    Reset,
    /// The other side falls silent; the agents find out by their pings.
    Silent,
    /// All of so many instances stop: each gives its agents drain slots, and ends after [`DRAIN_TIMEOUT`].
    Stopped { instances: u32 },
    /// Each connects at a random moment of this time, without having lost a stream.
    Spread { over: f64 },
    /// One percent after the other begins in this distance, and is spread over this time.
    Steps { every: f64, over: f64 },
}

/// An agent between the fault and its next acknowledgement. Times are seconds after the fault.
#[derive(Clone, Debug)]
pub struct Agent {
    pub backoff: Backoff,
    /// Infinite for an agent that keeps its old stream until it has a new one.
    pub lost_at: f64,
    pub connects_at: f64,
    /// The first sample after the fault is due then.
    pub phase: f64,
}

impl Agent {
    /// Counts a failure, and returns the wait that the contract asks for, in seconds.
    pub fn wait(&mut self, hint: Option<f64>, random: &mut StdRng) -> f64 {
        let hint = hint.map(Duration::from_secs_f64);
        let wait = self
            .backoff
            .next(BackoffBounds::STANDARD, hint, random.random());
        wait.as_secs_f64()
    }

    fn lose(&mut self, at: f64, noticed: f64, hint: Option<f64>, random: &mut StdRng) {
        self.lost_at = at;
        self.connects_at = noticed + self.wait(hint, random);
    }
}

impl Arrival {
    /// The agent of this number among so many.
    pub fn agent(self, number: u32, agents: u32, interval: f64, random: &mut StdRng) -> Agent {
        let mut agent = Agent {
            backoff: Backoff::default(),
            lost_at: f64::INFINITY,
            connects_at: 0.0,
            phase: interval * random.random::<f64>(),
        };
        let chance: f64 = random.random();
        match self {
            Arrival::Reset => agent.lose(0.0, 0.0, None, random),
            Arrival::Silent => {
                let noticed = PING_TIMEOUT + PING_EVERY * chance;
                agent.lose(0.0, noticed, None, random);
            }
            Arrival::Stopped { instances } => {
                let slot = slot(number / instances, agents.div_ceil(instances), chance);
                agent.connects_at = slot;
                agent.lost_at = slot;
                if slot >= DRAIN_TIMEOUT {
                    agent.lose(DRAIN_TIMEOUT, DRAIN_TIMEOUT, Some(slot), random);
                }
            }
            Arrival::Spread { over } => agent.connects_at = over * chance,
            Arrival::Steps { every, over } => {
                let step = u64::from(number) * u64::from(STEPS) / u64::from(agents);
                agent.connects_at = step as f64 * every + over * chance;
            }
        }
        agent
    }
}

/// The drain slot of the agent of this number among those of an instance.
fn slot(number: u32, agents: u32, chance: f64) -> f64 {
    let spread = (f64::from(agents) / DRAIN_ARRIVALS).min(DRAIN_SPREAD.as_secs_f64());
    spread * (f64::from(number) + chance) / f64::from(agents)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn agents(arrival: Arrival, count: u32) -> Vec<Agent> {
        let mut random = StdRng::seed_from_u64(1);
        let agent = |number| arrival.agent(number, count, 30.0, &mut random);
        (0..count).map(agent).collect()
    }

    #[test]
    fn a_drained_percent_begins_after_the_one_before_it() {
        let (every, over) = (30.0, 10.0);
        for (number, agent) in agents(Arrival::Steps { every, over }, 1_000)
            .iter()
            .enumerate()
        {
            let step = (number / 10) as f64 * every;
            assert!((step..step + over).contains(&agent.connects_at));
            assert_eq!(agent.lost_at, f64::INFINITY);
        }
    }

    #[test]
    fn a_stopped_instance_s_agents_wait_for_their_slots() {
        for agent in agents(Arrival::Stopped { instances: 3 }, 6_000) {
            assert!(agent.connects_at <= DRAIN_TIMEOUT + 10.0 * 1.1);
            assert!(agent.lost_at <= DRAIN_TIMEOUT);
        }
        assert_eq!(slot(999_999, 1_000_000, 1.0), 300.0);
    }

    #[test]
    fn silence_is_noticed_by_pings() {
        for agent in agents(Arrival::Silent, 1_000) {
            assert!((10.0..31.0).contains(&agent.connects_at));
        }
    }
}
