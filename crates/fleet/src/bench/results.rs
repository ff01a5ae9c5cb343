//! The results of the benchmark, as they are stored.

use std::{fs, path::Path};

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    climb::ClimbResult,
    history::{History, Hour},
    load::HeartbeatCost,
    sql::SqlCost,
};
use crate::{procfs::Machine, run::report::Quantiles};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    pub quick: bool,
    /// Whether the build was not optimised. Such figures are meaningless.
    pub debug: bool,
    /// The divisor of all fleet sizes; 1 in a real run.
    pub divide: u32,
    pub at: Timestamp,
    /// PostgreSQL's version and settings.
    #[serde(default)]
    pub postgres: String,
    #[serde(default)]
    pub rss: Vec<Rss>,
    pub pace: Option<Pace>,
    pub low: Option<HeartbeatCost>,
    pub saturate: Option<Saturate>,
    pub instances: Option<Instances>,
    pub history: Option<History>,
    pub hour: Option<Hour>,
    pub enrol: Option<Enrol>,
    pub handshake: Option<Handshake>,
    pub storm: Option<Storm>,
    pub kill: Option<Kill>,
    #[serde(default)]
    pub restart: Vec<Restart>,
    #[serde(default)]
    pub growth: Vec<HeartbeatCost>,
    pub fifty: Option<Fifty>,
    pub climb: Option<ClimbResult>,
}

/// KiB per connected agent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Rss {
    pub agents: u32,
    pub service: Memory,
    pub echo: Memory,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Memory {
    pub idle_kib: f64,
    pub used_kib: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pace {
    pub service: HeartbeatCost,
    pub echo: HeartbeatCost,
    pub sql: SqlCost,
    /// `None` in results of earlier versions.
    pub minimal: Option<SqlCost>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Saturate {
    pub service: HeartbeatCost,
    pub echo: HeartbeatCost,
    pub half: HeartbeatCost,
    /// `None` in results of earlier versions.
    pub minimal: Option<SqlCost>,
}

/// One fleet at one rate, on one instance and on many.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Instances {
    pub instances: usize,
    pub one: HeartbeatCost,
    pub many: HeartbeatCost,
    /// One instance again, after the many. `None` in older results.
    #[serde(default)]
    pub one_again: Option<HeartbeatCost>,
}

impl Instances {
    /// PostgreSQL's CPU per heartbeat on many instances, divided by the mean of one instance before and after: a machine
    /// that steadily becomes slower or faster changes both equally.
    pub fn ratio(&self) -> f64 {
        let again = self.one_again.unwrap_or(self.one);
        let one = f64::midpoint(self.one.postgres_us, again.postgres_us);
        self.many.postgres_us / one
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Enrol {
    pub agents: u32,
    pub per_second: f64,
    pub service_us: f64,
    pub postgres_us: f64,
    pub times: Quantiles,
    /// Attempts that failed. Results of earlier versions do not have it.
    pub second_tries: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Handshake {
    pub per_second: f64,
    pub service_us: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Storm {
    pub agents: u32,
    pub connected_seconds: f64,
    pub back_seconds: f64,
    pub service_us: f64,
    pub statements: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Kill {
    pub agents: u32,
    /// From the loss of a stream to the Welcome of the next.
    pub absence: Quantiles,
    pub back_seconds: f64,
    /// The largest observed number of PostgreSQL connections, and how many the other instance may open.
    pub most_connections: u64,
    pub pool: u64,
}

/// All instances killed and started again, then stopped and started again: from the start until all serve, and from then
/// until all agents are back and acknowledged.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Restart {
    pub agents: u32,
    pub instances: usize,
    pub killed_up_seconds: f64,
    pub killed_back_seconds: f64,
    pub stopped_up_seconds: f64,
    pub stopped_back_seconds: f64,
    pub offline: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fifty {
    pub instances: usize,
    pub cost: HeartbeatCost,
    pub offline: u64,
    pub acked: u64,
}

impl Results {
    /// The results in the file, or empty ones. Results of different kinds of runs are not mixed.
    pub fn load(path: &Path, quick: bool, divide: u32) -> Results {
        let new = Results::new(quick, divide);
        let stored = Results::read(path).ok();
        stored
            .filter(|stored| stored.kind() == new.kind())
            .unwrap_or(new)
    }

    fn kind(&self) -> (bool, bool, u32) {
        (self.quick, self.debug, self.divide)
    }

    /// Whether the figures are meaningful.
    pub fn is_real(&self) -> bool {
        !self.debug && self.divide == 1
    }

    pub fn new(quick: bool, divide: u32) -> Results {
        Results {
            machine: Machine::here(),
            quick,
            debug: cfg!(debug_assertions),
            divide,
            at: Timestamp::now(),
            ..Results::default()
        }
    }

    pub fn read(path: &Path) -> anyhow::Result<Results> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    pub fn save(&mut self, path: &Path) -> anyhow::Result<()> {
        self.at = Timestamp::now();
        self.machine = Machine::here();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}
