//! What was measured, as it is stored.

use std::{fs, path::Path};

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{far::Far, load::Cost, sql::SqlCost};
use crate::{proc::Machine, run::report::Quantiles};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    pub quick: bool,
    /// Of a build without optimisation, whose figures say nothing.
    pub debug: bool,
    /// What all fleets were divided by: 1, unless the stages were only tried.
    pub divide: u32,
    pub at: Timestamp,
    #[serde(default)]
    pub rss: Vec<Rss>,
    pub pace: Option<Pace>,
    pub low: Option<Cost>,
    pub saturate: Option<Saturate>,
    pub enrol: Option<Enrol>,
    pub handshake: Option<Handshake>,
    pub storm: Option<Storm>,
    pub kill: Option<Kill>,
    #[serde(default)]
    pub growth: Vec<Cost>,
    pub fifty: Option<Fifty>,
    pub far: Option<Far>,
}

/// KiB a connected agent.
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
    pub service: Cost,
    pub echo: Cost,
    pub sql: SqlCost,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Saturate {
    pub service: Cost,
    pub echo: Cost,
    pub half: Cost,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Enrol {
    pub agents: u32,
    pub per_second: f64,
    pub service_us: f64,
    pub postgres_us: f64,
    pub times: Quantiles,
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
    /// The most connections that PostgreSQL was seen to hold, and how many the sibling may have.
    pub most_connections: u64,
    pub pool: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fifty {
    pub instances: usize,
    pub cost: Cost,
    pub offline: u64,
    pub acked: u64,
}

impl Results {
    /// What is there under this name, or nothing yet. Figures of different kinds are not mixed.
    pub fn load(path: &Path, quick: bool, divide: u32) -> Results {
        let new = Results::new(quick, divide);
        let there = fs::read_to_string(path).ok();
        let there = there.and_then(|text| serde_json::from_str::<Results>(&text).ok());
        there
            .filter(|there| there.kind() == new.kind())
            .unwrap_or(new)
    }

    fn kind(&self) -> (bool, bool, u32) {
        (self.quick, self.debug, self.divide)
    }

    /// Whether its figures say something of the service.
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
            rss: vec![],
            pace: None,
            low: None,
            saturate: None,
            enrol: None,
            handshake: None,
            storm: None,
            kill: None,
            growth: vec![],
            fifty: None,
            far: None,
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
