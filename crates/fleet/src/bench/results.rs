//! The results of the benchmark, as they are stored: for each stage its tables and its goals.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    figures::{Figures, Goal},
    procfs::Machine,
};

/// The stages, in the order in which they run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Memory per connected agent, idle and after traffic; also of the bare echo server
    Rss,
    /// CPU per heartbeat at a steady pace; also of the bare echo server, the bare SQL loop and the minimal one
    Pace,
    /// Durable heartbeats per second at saturation, and acknowledgement times at half of that
    Saturate,
    /// PostgreSQL's CPU at a low rate on ten instances, and on one
    Instances,
    /// Disk and WAL bytes per sample, compaction, and pages of history that are read back
    History,
    /// Compaction of one hour of 100,000 hosts, 12 million samples: duration, memory, pages read. Only by its name
    Hour,
    /// Registrations per second, from token to JWT
    Enrol,
    /// All connections cut at the same time
    Storm,
    /// All instances stopped or killed, and started again: one, and three
    Restart,
    /// More and more agents and instances, until the machine is used up
    Climb,
}

/// Results of debug builds and of divided fleets try the stages out: their figures are meaningless.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    debug: bool,
    /// The divisor of all fleet sizes.
    divide: u32,
    pub stages: BTreeMap<Stage, Measured>,
}

/// What a stage has measured, when, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub at: Timestamp,
    pub machine: Machine,
    /// PostgreSQL's version and settings.
    pub postgres: String,
    #[serde(flatten)]
    pub figures: Figures,
}

impl Results {
    fn new(divide: u32) -> Results {
        Results {
            debug: cfg!(debug_assertions),
            divide,
            stages: BTreeMap::new(),
        }
    }

    /// The results in the file, if there is one. Results of different kinds of runs are not mixed.
    pub fn load(path: &Path, divide: u32) -> anyhow::Result<Results> {
        let new = Results::new(divide);
        if !path.exists() {
            return Ok(new);
        }
        let stored = Results::read(path)?;
        let same_kind = (stored.debug, stored.divide) == (new.debug, new.divide);
        Ok(if same_kind { stored } else { new })
    }

    pub fn read(path: &Path) -> anyhow::Result<Results> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Whether the figures are meaningful.
    pub fn are_real(&self) -> bool {
        !self.debug && self.divide == 1
    }

    pub fn add(&mut self, stage: Stage, mut figures: Figures, postgres: &str) -> &Measured {
        // Only the goals that mean something for a small fleet.
        if self.divide > 1 {
            figures.goals.retain_mut(Goal::widen);
        }
        let measured = Measured {
            at: Timestamp::now(),
            machine: Machine::here(),
            postgres: postgres.to_owned(),
            figures,
        };
        self.stages.insert(stage, measured);
        &self.stages[&stage]
    }

    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}
