//! Scenarios: small files that say how many agents there are, what happens to them, and what must hold.
//!
//! A scenario fails when one of its `must` lines does not hold. The books are looked at always.

mod must;
mod play;

use std::{
    fs,
    io::{Write, stdout},
    time::Duration,
};

use anyhow::Context;
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;

use self::must::{Check, Must};
use crate::{plan::Skew, run::duration};

/// With `--brief` no wait is longer, and agents report every second.
const BRIEF: Duration = Duration::from_secs(6);

/// Agents a second that a small machine can take while it does other things.
const ARRIVALS: f64 = 300.0;

const KNOWN: [(&str, &str); 10] = [
    ("steady", include_str!("../scenarios/steady.toml")),
    ("ramp", include_str!("../scenarios/ramp.toml")),
    ("storm", include_str!("../scenarios/storm.toml")),
    (
        "rolling-restart",
        include_str!("../scenarios/rolling-restart.toml"),
    ),
    ("churn", include_str!("../scenarios/churn.toml")),
    ("enrol", include_str!("../scenarios/enrol.toml")),
    ("clone", include_str!("../scenarios/clone.toml")),
    ("skew", include_str!("../scenarios/skew.toml")),
    ("db-stall", include_str!("../scenarios/db-stall.toml")),
    ("backfill", include_str!("../scenarios/backfill.toml")),
];

#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs {
    /// A scenario's name, or a file; without one they are listed
    scenario: Option<String>,
    /// How many virtual agents, instead of what the file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: Option<u32>,
    /// How often they report, instead of what the file says
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Cut every wait short and ask for no times: whether it works at all
    #[arg(long)]
    brief: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One sentence: what it shows.
    pub about: String,
    pub agents: u32,
    /// At least so many; more where the agents need them.
    pub instances: u32,
    #[serde(with = "compact::required")]
    pub interval: Duration,
    #[serde(with = "compact::required")]
    pub ramp: Duration,
    #[serde(default)]
    pub skew: Option<Skew>,
    pub steps: Vec<Step>,
    pub must: Must,
}

/// What happens, one after the other. After each but `watch` all agents must come back.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Nothing.
    Watch {
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// All connections are cut at one moment.
    Cut,
    /// An instance is killed (SIGKILL) and not started again.
    Kill { instance: usize },
    /// Every instance in turn is told to stop (SIGTERM), and started again.
    RollingRestart,
    /// PostgreSQL stands still (SIGSTOP).
    FreezeDatabase {
        #[serde(rename = "for", with = "compact::required")]
        time: Duration,
    },
    /// PostgreSQL is stopped, and started again.
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
    /// This part of the agents, 0 to 1, is copied to other machines.
    Copy { share: f64 },
    /// All agents go away and come back with the samples of the time they were away.
    Backfill {
        samples: u32,
        #[serde(with = "compact::required")]
        span: Duration,
    },
}

impl Scenario {
    pub fn load(name: &str) -> anyhow::Result<Scenario> {
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let text = match known {
            Some((_, text)) => (*text).to_owned(),
            None => fs::read_to_string(name)
                .with_context(|| format!("{name} is neither a known scenario nor a file"))?,
        };
        toml::from_str(&text).with_context(|| name.to_owned())
    }

    fn adjusted(mut self, args: &ScenarioArgs) -> Scenario {
        self.agents = args.agents.unwrap_or(self.agents);
        if args.brief {
            self.interval = Duration::from_secs(1);
            self.ramp = self.ramp.min(Duration::from_secs(1));
            self.steps.iter_mut().for_each(Step::be_brief);
            self.must = self.must.without_times();
        }
        self.interval = args.interval.unwrap_or(self.interval);
        self.ramp = self.bearable_ramp();
        self
    }

    /// More agents than the file thought of take longer to come; all at once stays all at once.
    fn bearable_ramp(&self) -> Duration {
        let needed = Duration::from_secs_f64(f64::from(self.agents) / ARRIVALS);
        match self.ramp.is_zero() {
            true => self.ramp,
            false => self.ramp.max(needed),
        }
    }
}

impl Step {
    fn be_brief(&mut self) {
        if let Step::Watch { time }
        | Step::FreezeDatabase { time }
        | Step::StopDatabase { time }
        | Step::Churn { time, .. } = self
        {
            *time = (*time).min(BRIEF);
        }
    }
}

/// Whether everything held that must.
pub async fn run(args: ScenarioArgs) -> anyhow::Result<bool> {
    let Some(name) = &args.scenario else {
        return list().map(|()| true);
    };
    let scenario = Scenario::load(name)?.adjusted(&args);
    let mut out = stdout();
    writeln!(out, "{name}: {}", scenario.about)?;
    let checks = play::play(&scenario).await?;
    for check in &checks {
        writeln!(out, "  {check}")?;
    }
    Ok(checks.iter().all(Check::held))
}

fn list() -> anyhow::Result<()> {
    for (name, text) in KNOWN {
        let scenario: Scenario = toml::from_str(text).context(name)?;
        writeln!(stdout(), "{name:16} {}", scenario.about)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_scenario_can_be_read_and_asks_for_something() {
        for (name, _) in KNOWN {
            let scenario = Scenario::load(name).unwrap();
            assert!(scenario.agents <= 200, "{name}: a laptop must do");
            assert!(
                !scenario.steps.is_empty() && scenario.must.lines() > 0,
                "{name}"
            );
        }
    }

    #[test]
    fn what_a_file_says_wrong_is_an_error() {
        let wrong = include_str!("../scenarios/steady.toml").replace("ack_p99", "ack_p98");
        assert!(toml::from_str::<Scenario>(&wrong).is_err());
    }
}
