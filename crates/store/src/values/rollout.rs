//! Rollouts of releases to agents: their stages, their hours, and the closed sets of their states.

use std::{error::Error, fmt, str::FromStr};

use jiff::Timestamp;
use tokio_postgres::types::{FromSql, Type};

use super::text_enum::text_enum;

/// Of a place: the share of all agents is counted in millionths, so that five hosts of a large fleet are still told apart.
pub const PLACES: i32 = 1_000_000;

text_enum! {
    /// How far an agent is with the release that it was offered last.
    #[derive(Hash)]
    pub enum UpdateStep {
        None = "none",
        Offered = "offered",
        Downloading = "downloading",
        Staged = "staged",
        Trying = "trying",
        Approved = "approved",
        Refused = "refused",
        Unable = "unable",
    }
    else None
}

text_enum! {
    /// A state that is not known offers nothing.
    pub enum RolloutState {
        Running = "running",
        Paused = "paused",
        Halted = "halted",
        Done = "done",
    }
    else Paused
}

/// How many agents a stage reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Hosts(u32),
    Percent(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    #[error("a stage is a number of hosts (5) or a share of them (10%), not {0:?}")]
    Stage(String),
    #[error("there are 1 to 16 stages, hosts before shares, each larger than the one before")]
    Order,
    #[error(transparent)]
    Hours(#[from] svc_release::HoursError),
}

impl Stage {
    /// The threshold of a share; a number of hosts depends on which hosts there are.
    pub fn threshold(self) -> Option<i32> {
        match self {
            Stage::Hosts(_) => None,
            Stage::Percent(percent) => Some(PLACES / 100 * i32::from(percent)),
        }
    }
}

impl FromStr for Stage {
    type Err = RolloutError;

    fn from_str(text: &str) -> Result<Stage, RolloutError> {
        let wrong = || RolloutError::Stage(text.to_owned());
        match text.strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent @ 1..=100) => Ok(Stage::Percent(percent)),
                _ => Err(wrong()),
            },
            None => match text.parse() {
                Ok(hosts @ 1..=1_000_000) => Ok(Stage::Hosts(hosts)),
                _ => Err(wrong()),
            },
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Hosts(hosts) => write!(f, "{hosts}"),
            Stage::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl serde::Serialize for Stage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The database has what this program or a newer one wrote. A stage that is not known ends the read, and the rollout stands still.
impl<'a> FromSql<'a> for Stage {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Stage, Box<dyn Error + Sync + Send>> {
        Ok(<&str>::from_sql(ty, raw)?.parse()?)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

/// The stages of a list that people write, `5, 1%, 10%, 100%`.
pub fn stages(list: &str) -> Result<Vec<Stage>, RolloutError> {
    let stages = list.split(',').map(|stage| stage.trim().parse());
    let stages = stages.collect::<Result<Vec<Stage>, _>>()?;
    let rank = |stage: &Stage| match *stage {
        Stage::Hosts(hosts) => (0, hosts),
        Stage::Percent(percent) => (1, u32::from(percent)),
    };
    match stages.len() <= 16 && stages.is_sorted_by(|one, next| rank(one) < rank(next)) {
        true => Ok(stages),
        false => Err(RolloutError::Order),
    }
}

/// When a rollout goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Hours(svc_release::Hours);

impl Hours {
    pub fn contain(self, at: Timestamp) -> bool {
        self.0.contain(at)
    }
}

impl FromStr for Hours {
    type Err = RolloutError;

    fn from_str(text: &str) -> Result<Hours, RolloutError> {
        Ok(Hours(text.parse()?))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a> FromSql<'a> for Hours {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Hours, Box<dyn Error + Sync + Send>> {
        Ok(<&str>::from_sql(ty, raw)?.parse()?)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_parsed_as_they_are_shown_and_only_grow() {
        let parsed = stages("5, 1%,10%,100%").unwrap();
        let shown: Vec<String> = parsed.iter().map(Stage::to_string).collect();
        assert_eq!(shown, ["5", "1%", "10%", "100%"]);
        assert_eq!(parsed[1].threshold(), Some(10_000));
        assert_eq!(parsed[3].threshold(), Some(PLACES));
        for wrong in [
            "", "0", "0%", "101%", "-5", "x", "1%,5", "10%,10%", "5,", "9,8",
        ] {
            assert!(stages(wrong).is_err(), "{wrong:?}");
        }
    }
}
