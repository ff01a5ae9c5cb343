//! Scenarios: small TOML files with the size of a fleet, the steps that happen to it, and what must hold.
//!
//! A scenario fails if one of the expectations in its `must` table does not hold. The audit of the books is
//! an expectation of every scenario.

mod expectations;
mod history;
mod runner;

use std::{
    fs,
    io::{Write, stdout},
    time::Duration,
};

use anyhow::Context;
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;

use self::expectations::{Check, Expectations};
use crate::{plan::Skew, run::duration};

/// The longest wait with `--brief`.
const BRIEF_WAIT: Duration = Duration::from_secs(6);

/// The most samples of history per host with `--brief`.
const BRIEF_SAMPLES: u32 = 24;

/// Agents per second that a small machine can connect beside its other work.
const ARRIVALS_PER_SECOND: f64 = 300.0;

const BUILT_IN: [(&str, &str); 14] = [
    ("steady", include_str!("../scenarios/steady.toml")),
    ("ramp", include_str!("../scenarios/ramp.toml")),
    ("storm", include_str!("../scenarios/storm.toml")),
    (
        "rolling-restart",
        include_str!("../scenarios/rolling-restart.toml"),
    ),
    ("restart", include_str!("../scenarios/restart.toml")),
    ("restart-all", include_str!("../scenarios/restart-all.toml")),
    ("upgrade", include_str!("../scenarios/upgrade.toml")),
    ("churn", include_str!("../scenarios/churn.toml")),
    ("enrol", include_str!("../scenarios/enrol.toml")),
    ("clone", include_str!("../scenarios/clone.toml")),
    ("skew", include_str!("../scenarios/skew.toml")),
    ("db-stall", include_str!("../scenarios/db-stall.toml")),
    ("backfill", include_str!("../scenarios/backfill.toml")),
    ("recovery", include_str!("../scenarios/recovery.toml")),
];

#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs {
    /// The name of a built-in scenario, or a file; without it, list the scenarios
    scenario: Option<String>,
    /// Number of virtual agents, instead of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: Option<u32>,
    /// Time between two reports of an agent, instead of the file's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Shorten every wait and check no times, to see only whether it works
    #[arg(long)]
    brief: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, in one sentence.
    pub about: String,
    pub agents: u32,
    /// The least number of instances; large fleets get more.
    pub instances: u32,
    /// Whether the instances are of the previous version at the start (`SVC_INGEST_PREVIOUS_BIN`).
    #[serde(default)]
    pub from_previous: bool,
    #[serde(with = "compact::required")]
    pub interval: Duration,
    #[serde(with = "compact::required")]
    pub ramp: Duration,
    #[serde(default)]
    pub skew: Option<Skew>,
    pub steps: Vec<Step>,
    #[serde(rename = "must")]
    pub expectations: Expectations,
}

/// The steps run one after another. After each, except `watch`, all agents must come back.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Nothing happens.
    Watch {
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// All connections are cut at the same time.
    Cut,
    /// An instance is killed (SIGKILL) and not started again.
    Kill { instance: usize },
    /// Each instance in turn gets SIGTERM and is started again.
    RollingRestart,
    /// All instances end at once, by SIGTERM or by SIGKILL, and are started again.
    RestartAll { kill: bool },
    /// As many hosts as there are agents get samples of the last 24 hours, as the previous version stores them.
    FillHistory { samples: u32 },
    /// Each instance in turn gets SIGTERM, and one of this version is started in its place.
    Upgrade,
    /// The same with the previous version.
    Rollback,
    /// PostgreSQL is frozen (SIGSTOP).
    FreezeDatabase {
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// PostgreSQL is stopped and started again.
    StopDatabase {
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// Agents leave and come back, each after `stay` on average.
    Churn {
        #[serde(with = "compact::required")]
        stay: Duration,
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// A part of the agents, 0 to 1, is cloned to other machines.
    Copy { share: f64 },
    /// All agents disconnect and return with the samples of that time.
    Backfill {
        samples: u32,
        #[serde(with = "compact::required")]
        span: Duration,
    },
}

impl Scenario {
    pub fn load(name: &str) -> anyhow::Result<Scenario> {
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let text = match built_in {
            Some((_, text)) => (*text).to_owned(),
            None => fs::read_to_string(name)
                .with_context(|| format!("{name} is neither a built-in scenario nor a file"))?,
        };
        toml::from_str(&text).with_context(|| name.to_owned())
    }

    fn adjusted(mut self, args: &ScenarioArgs) -> Scenario {
        self.agents = args.agents.unwrap_or(self.agents);
        if args.brief {
            self.interval = Duration::from_secs(1);
            self.ramp = self.ramp.min(Duration::from_secs(1));
            self.steps.iter_mut().for_each(Step::shorten);
            self.expectations = self.expectations.without_times();
        }
        self.interval = args.interval.unwrap_or(self.interval);
        self.ramp = self.ramp_for_agents();
        self
    }

    /// Lengthens the ramp for a fleet that is larger than the file's. A ramp of zero stays zero.
    fn ramp_for_agents(&self) -> Duration {
        let needed = Duration::from_secs_f64(f64::from(self.agents) / ARRIVALS_PER_SECOND);
        match self.ramp.is_zero() {
            true => self.ramp,
            false => self.ramp.max(needed),
        }
    }
}

impl Step {
    fn shorten(&mut self) {
        if let Step::Watch { time }
        | Step::FreezeDatabase { time }
        | Step::StopDatabase { time }
        | Step::Churn { time, .. } = self
        {
            *time = (*time).min(BRIEF_WAIT);
        }
        if let Step::FillHistory { samples } = self {
            *samples = (*samples).min(BRIEF_SAMPLES);
        }
    }
}

/// Returns whether all expectations held.
pub async fn run(args: ScenarioArgs) -> anyhow::Result<bool> {
    let Some(name) = &args.scenario else {
        return list().map(|()| true);
    };
    let scenario = Scenario::load(name)?.adjusted(&args);
    let mut out = stdout();
    writeln!(out, "{name}: {}", scenario.about)?;
    let checks = runner::run(&scenario).await?;
    for check in &checks {
        writeln!(out, "  {check}")?;
    }
    Ok(checks.iter().all(Check::held))
}

fn list() -> anyhow::Result<()> {
    for (name, text) in BUILT_IN {
        let scenario: Scenario = toml::from_str(text).context(name)?;
        writeln!(stdout(), "{name:16} {}", scenario.about)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{expectations::tests::good_run, *};

    #[test]
    fn every_built_in_scenario_is_valid_and_has_expectations() {
        for (name, _) in BUILT_IN {
            let scenario = Scenario::load(name).unwrap();
            assert!(scenario.agents <= 200, "{name}: too large for a laptop");
            assert!(
                !scenario.steps.is_empty() && scenario.expectations.checks(&good_run()).len() > 1,
                "{name}"
            );
        }
    }

    #[test]
    fn an_unknown_expectation_is_an_error() {
        let wrong = include_str!("../scenarios/steady.toml").replace("ack_p99", "ack_p98");
        assert!(toml::from_str::<Scenario>(&wrong).is_err());
    }
}
