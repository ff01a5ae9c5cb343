//! The messages between a fleet and its workers: the plan, orders while it runs, and what comes back.
//!
//! The plan and the orders go to the worker's standard input as JSON lines. They are no command-line
//! arguments, because other users of the machine can read those, and the plan contains the token.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use svc_harness::Balance;

use crate::{state, stats::StatsUpdate};

/// An enrolment token or a seed. `Debug` does not print it.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What all virtual agents of a fleet have in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub agents: u32,
    /// The number of the first agent. It differs between fleets that run on one machine, because it
    /// decides which addresses their agents connect from.
    pub first: u32,
    /// Agents start at different ones.
    pub targets: Vec<SocketAddr>,
    /// The name in the server's certificate.
    pub server_name: String,
    /// CA certificates in PEM. Without them agents accept any server certificate.
    pub ca_pem: Option<String>,
    pub token: Secret,
    pub seed: Secret,
    /// None: the interval that the service sends.
    pub interval: Option<Duration>,
    pub ramp: Duration,
    /// How many agents of a worker connect at once; None: all that want to. They share one thread. If the machine has
    /// little time for it, they delay each other until the service ends their handshakes, which no fleet of real
    /// machines does.
    pub openings: Option<usize>,
    pub report_samples: u32,
    /// Takes no sample while two reports are unacknowledged, so the service sets the pace.
    pub closed_loop: bool,
    /// The folder that keeps JWTs between runs.
    pub state: Option<PathBuf>,
    /// Agents register, and open no stream.
    pub enrol_only: bool,
}

/// The part of a fleet that one worker runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPlan {
    pub first: u32,
    pub count: u32,
    pub fleet: Plan,
}

/// What changes while a fleet runs.
///
/// Agents read it from a `watch` channel, which keeps only the latest value. Therefore one-time orders are
/// counters: an agent compares them with what it has carried out, and misses none that was overwritten.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Incremented to restart the count of agents that get an acknowledgement.
    pub mark: u64,
    /// Incremented to make all agents drop their connections and reconnect at once.
    pub cuts: u64,
    /// Agents take no more samples.
    pub quiet: bool,
    /// Replaces the interval.
    pub interval: Option<Duration>,
    /// Agents say goodbye and end.
    pub leave: bool,
}

/// What a worker writes, one JSON line each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum WorkerMessage {
    Stats(Box<StatsUpdate>),
    /// At the end, one for each agent.
    Balance(Balance),
    Done,
}

impl Plan {
    /// A fleet on this machine that reports at the service's interval, with all options off.
    pub fn local(agents: u32, targets: Vec<SocketAddr>, token: String) -> Plan {
        Plan {
            agents,
            first: 0,
            targets,
            server_name: "localhost".into(),
            ca_pem: None,
            token: Secret(token),
            seed: Secret(state::random_seed()),
            interval: None,
            ramp: Duration::ZERO,
            openings: None,
            report_samples: 1,
            closed_loop: false,
            state: None,
            enrol_only: false,
        }
    }

    pub fn is_local(&self) -> bool {
        self.targets.iter().all(|target| target.ip().is_loopback())
    }
}

/// Splits `agents` as evenly as possible, as (first, count) for each worker.
pub fn split(agents: u32, workers: u32) -> Vec<(u32, u32)> {
    let workers = workers.clamp(1, agents.max(1));
    let bounds = |index: u32| (u64::from(agents) * u64::from(index) / u64::from(workers)) as u32;
    (0..workers)
        .map(|index| (bounds(index), bounds(index + 1) - bounds(index)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_agent_belongs_to_one_worker(agents in 1_u32..300_000, workers in 0_u32..40) {
            let parts = split(agents, workers);
            let mut next = 0;
            for (first, count) in &parts {
                prop_assert_eq!(*first, next);
                prop_assert!(*count > 0);
                next += count;
            }
            prop_assert_eq!(next, agents);
            let counts = parts.iter().map(|(_, count)| *count);
            prop_assert!(counts.clone().max().unwrap() - counts.min().unwrap() <= 1);
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let shown = format!("{:?}", Secret("svc_enr_secret".into()));
        assert!(!shown.contains("secret"));
    }
}
