//! What a worker is told: its plan, once, and orders while it runs.
//!
//! Both travel over the worker's standard input as JSON lines, so that a token is never an argument
//! that other users of the machine could read.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// An enrolment token; not shown.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What all virtual agents of a fleet have in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub agents: u32,
    /// The number of its first agent, where several fleets share a machine and its addresses.
    pub first: u32,
    pub targets: Vec<SocketAddr>,
    /// Whether agents begin at different targets; otherwise all begin at the first.
    pub spread: bool,
    /// The name in the server's certificate.
    pub server_name: String,
    /// PEM of who vouches for the server; without it any certificate will do, whose key it holds.
    pub ca_pem: Option<String>,
    pub token: Token,
    pub seed: Token,
    /// None: as the service says.
    pub interval: Option<Duration>,
    pub ramp: Duration,
    pub report_samples: u32,
    /// Takes a sample only when the service has room: as much as it can, never more.
    pub closed_loop: bool,
    pub skew: Option<Skew>,
    /// Where JWTs are kept between runs.
    pub state: Option<PathBuf>,
    pub task: Task,
}

/// What the agents are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    #[default]
    Report,
    /// They register and hold no stream.
    Enrol,
    /// They do TLS handshakes and nothing else, as fast as they can.
    Handshake,
}

/// Agents whose clocks are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skew {
    /// The part of the fleet, 0 to 1.
    pub share: f64,
    pub ahead_seconds: i64,
    /// Whether they correct their clocks by the service's, as agents should.
    pub corrects: bool,
}

/// A worker's part of the fleet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub first: u32,
    pub count: u32,
    pub plan: Plan,
}

/// What changes while a fleet runs. Agents look at the whole; numbers that grew are news.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Acknowledgements count as new after each mark.
    pub mark: u64,
    /// All drop their connections and come back at once.
    pub cuts: u64,
    /// No more samples are taken.
    pub quiet: bool,
    /// All are away, each with this many samples of the time they were away.
    pub away: Option<Away>,
    /// Each leaves by itself once in so long, and comes back.
    pub churn: Option<Duration>,
    /// This part of the agents, 0 to 1, is copied to other machines.
    pub copies: f64,
    /// From now on another interval.
    pub interval: Option<Duration>,
    /// Say goodbye and end.
    pub leave: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Away {
    pub samples: u32,
    pub span: Duration,
}

/// What a worker says, a JSON line each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Line {
    Told(Box<crate::tally::Told>),
    /// At the end, one for each agent.
    Balance(crate::ledger::Balance),
    Done,
}

impl Plan {
    pub fn is_local(&self) -> bool {
        self.targets.iter().all(|target| target.ip().is_loopback())
    }
}

impl Plan {
    /// A fleet on this machine that reports as the service says, with everything else left out.
    pub fn local(agents: u32, targets: Vec<SocketAddr>, token: String) -> Plan {
        Plan {
            agents,
            first: 0,
            targets,
            spread: true,
            server_name: "localhost".into(),
            ca_pem: None,
            token: Token(token),
            seed: Token(crate::state::random_seed()),
            interval: None,
            ramp: Duration::ZERO,
            report_samples: 1,
            closed_loop: false,
            skew: None,
            state: None,
            task: Task::Report,
        }
    }
}

/// `agents` split as evenly as it goes.
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
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", Token("svc_enr_secret".into()));
        assert!(!shown.contains("secret"));
    }
}
