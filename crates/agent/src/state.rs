//! The state file: what the agent keeps across a restart, besides its key. Losing it costs
//! one more registration and nothing else, so a damaged file counts as missing.

use std::{fmt, io, path::Path, time::Duration};

use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use svc_proto::v1::HostFacts;

use crate::{
    cell::Cell,
    clock::Anchor,
    data_dir::{DataDir, DataDirError, STATE, content},
    wire::Credential,
};

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub agent_id: Option<String>,
    jwt: Option<String>,
    jwt_expires_at: Option<Timestamp>,
    /// This key was registered as a successor over the key of its origin, so it needs no
    /// token.
    #[serde(default, rename = "placed")]
    pub is_successor: bool,
    /// The service admitted this key and has not said otherwise since. A JWT that it refused
    /// does not change that.
    #[serde(default, rename = "admitted")]
    is_admitted: bool,
    /// Where the agent was told to live; none: where its configuration says.
    #[serde(default)]
    pub cell: Option<Cell>,
    /// The cell, while the agent asks the addresses of its configuration instead.
    #[serde(default)]
    pub other_cell: Option<Cell>,
    /// Another cell has acknowledged samples, and the present one has not welcomed the agent since.
    #[serde(default)]
    pub came_from_elsewhere: bool,
    interval_seconds: Option<u64>,
    time: Option<KnownTime>,
    /// The machine that the key belongs to.
    #[serde(default)]
    machine: Machine,
}

/// What tells a machine from a copy of its disk, where it says so clearly:
///
/// - The cloud's instance id. If it is known, nothing else counts.
/// - The machine id together with the firmware's UUID. A new machine id alone may have
///   been set on the same machine. Another UUID alone is a machine that failed over to other
///   hardware, or whose firmware changed: it keeps its disk, so it keeps its machine id, and must
///   keep its identity. If both are new, the disk was copied into another machine.
///
/// A copy with its origin's machine id is left to the service, which knows whether the
/// origin is still heard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    cloud_instance_id: String,
    hardware_uuid: String,
    machine_id: String,
}

impl Machine {
    pub fn of(facts: &HostFacts) -> Self {
        Self {
            cloud_instance_id: facts.cloud_instance_id.clone(),
            hardware_uuid: facts.hardware_uuid.clone(),
            machine_id: facts.machine_id.clone(),
        }
    }

    fn is_copy_of(&self, origin: &Self) -> bool {
        let cloud = differs(&self.cloud_instance_id, &origin.cloud_instance_id);
        let hardware = || differs(&self.hardware_uuid, &origin.hardware_uuid);
        let machine = || differs(&self.machine_id, &origin.machine_id);
        cloud.unwrap_or_else(|| hardware() == Some(true) && machine() == Some(true))
    }

    /// A fact that is not readable at the moment is kept.
    fn or(self, known: &Self) -> Self {
        let or = |new: String, known: &String| match new.is_empty() {
            true => known.clone(),
            false => new,
        };
        Self {
            cloud_instance_id: or(self.cloud_instance_id, &known.cloud_instance_id),
            hardware_uuid: or(self.hardware_uuid, &known.hardware_uuid),
            machine_id: or(self.machine_id, &known.machine_id),
        }
    }
}

/// `None` unless both are known.
fn differs(one: &str, other: &str) -> Option<bool> {
    (!one.is_empty() && !other.is_empty()).then(|| one != other)
}

/// What [`State::bind`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Known,
    /// Something was learned about the machine, and should be saved.
    New,
    Copy,
}

/// The service's time, valid within one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownTime {
    boot_id: String,
    at: Timestamp,
    steady_ms: u64,
}

impl State {
    pub fn load(dir: &DataDir) -> Result<Self, DataDirError> {
        let text = dir.read(STATE)?;
        let parse = |text: String| match serde_json::from_str(&text) {
            Ok(state) => Some(state),
            Err(_) => {
                tracing::warn!("the state file is damaged: registering again");
                None
            }
        };
        Ok(text.and_then(parse).unwrap_or_default())
    }

    /// Binds the key to this machine, or finds that it belongs to another one, which means
    /// that this disk is a copy.
    pub fn bind(&mut self, machine: Machine) -> Binding {
        if machine.is_copy_of(&self.machine) {
            return Binding::Copy;
        }
        let machine = machine.or(&self.machine);
        if self.machine == machine {
            return Binding::Known;
        }
        self.machine = machine;
        Binding::New
    }

    /// The state without anything that the service said.
    pub fn of_deleted_agent(self) -> Self {
        Self {
            machine: self.machine,
            cell: self.cell,
            other_cell: self.other_cell,
            ..Self::default()
        }
    }

    /// The state of a key that has not registered yet.
    pub fn of_new_key(is_successor: bool, machine: Machine) -> Self {
        Self {
            is_successor,
            machine,
            ..Self::default()
        }
    }

    pub fn save(&self, dir: &DataDir) -> Result<(), DataDirError> {
        dir.write(STATE, &self.text())
    }

    /// The content of the file.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub fn credential(&self) -> Option<Credential> {
        let jwt = self.jwt.clone()?.into();
        let expires_at = self.jwt_expires_at.map(Into::into);
        Some(Credential { jwt, expires_at })
    }

    pub fn set_credential(&mut self, credential: &Credential) {
        self.is_admitted = true;
        self.jwt = Some(credential.jwt.expose_secret().to_owned());
        let expires_at = credential.expires_at;
        self.jwt_expires_at = expires_at.and_then(|at| Timestamp::try_from(at).ok());
    }

    /// The JWT is no longer valid.
    pub fn forget_credential(&mut self) {
        (self.jwt, self.jwt_expires_at) = (None, None);
    }

    /// Whether samples are taken. A state without the field, of an older version, has a JWT.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted || self.jwt.is_some()
    }

    /// The service rejected or revoked this key.
    pub fn set_refused(&mut self) {
        self.is_admitted = false;
        self.forget_credential();
    }

    pub fn interval(&self) -> Option<Duration> {
        self.interval_seconds.map(Duration::from_secs)
    }

    pub fn set_interval(&mut self, interval: Duration) {
        self.interval_seconds = Some(interval.as_secs().max(1));
    }

    /// The service's time, if it was saved within this boot.
    pub fn time(&self, boot_id: &str) -> Option<Anchor> {
        let known = self.time.as_ref()?;
        let this_boot = !boot_id.is_empty() && known.boot_id == boot_id;
        this_boot.then(|| Anchor {
            at: known.at.into(),
            steady: Duration::from_millis(known.steady_ms),
        })
    }

    pub fn set_time(&mut self, boot_id: &str, anchor: Anchor) {
        let known = Timestamp::try_from(anchor.at).map(|at| KnownTime {
            boot_id: boot_id.to_owned(),
            at,
            steady_ms: u64::try_from(anchor.steady.as_millis()).unwrap_or(u64::MAX),
        });
        self.time = known.ok();
    }

    pub fn jwt_expires_at(&self) -> Option<Timestamp> {
        self.jwt_expires_at
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("agent_id", &self.agent_id)
            .field("jwt_expires_at", &self.jwt_expires_at)
            .field("is_successor", &self.is_successor)
            .finish_non_exhaustive()
    }
}

/// The state in a data folder, whether or not an agent runs on it.
pub fn read(data_dir: &Path) -> io::Result<State> {
    let text = content(&data_dir.join(STATE))?;
    let state = text.and_then(|text| serde_json::from_str(&text).ok());
    Ok(state.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_a_restart_and_a_damaged_file_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        let mut state = State::load(&dir).unwrap();
        assert!(state.credential().is_none());
        state.set_credential(&Credential {
            jwt: "a.b.c".to_owned().into(),
            expires_at: None,
        });
        state.set_interval(Duration::from_secs(7));
        let anchor = Anchor {
            at: std::time::SystemTime::UNIX_EPOCH + Duration::from_hours(500_000),
            steady: Duration::from_millis(1234),
        };
        state.set_time("this boot", anchor);
        state.save(&dir).unwrap();
        assert_eq!(state.time("this boot"), Some(anchor));
        assert_eq!(state.time("another"), None);
        assert_eq!(State::load(&dir).unwrap(), state);
        assert!(!format!("{state:?}").contains("a.b.c"));

        dir.write(STATE, "{\"agent_id\": 7").unwrap();
        assert_eq!(State::load(&dir).unwrap(), State::default());
    }

    fn machine(cloud: &str, hardware: &str, machine: &str) -> Machine {
        Machine {
            cloud_instance_id: cloud.into(),
            hardware_uuid: hardware.into(),
            machine_id: machine.into(),
        }
    }

    #[test]
    fn another_instance_of_the_cloud_is_a_copy() {
        let mut state = State::default();
        assert_eq!(state.bind(machine("", "", "")), Binding::Known);
        assert_eq!(state.bind(machine("aws/1", "", "")), Binding::New);
        assert_eq!(state.bind(machine("aws/1", "", "")), Binding::Known);
        assert_eq!(state.bind(machine("", "", "")), Binding::Known);
        assert_eq!(state.bind(machine("aws/2", "", "")), Binding::Copy);
    }

    #[test]
    fn other_hardware_with_another_machine_id_is_a_copy() {
        let mut state = State::default();
        assert_eq!(state.bind(machine("", "board", "id")), Binding::New);
        assert_eq!(state.bind(machine("", "other", "other")), Binding::Copy);
        // The cloud knows better.
        assert_eq!(state.bind(machine("aws/1", "board", "id")), Binding::New);
        let same = machine("aws/1", "other", "other");
        assert_eq!(state.bind(same), Binding::New);
    }

    #[test]
    fn either_of_them_may_change_on_the_same_machine() {
        let mut state = State::default();
        state.bind(machine("", "board", "id"));
        // A failover, then a new machine id that an administrator set, then a UUID that
        // cannot be read.
        assert_eq!(state.bind(machine("", "spare", "id")), Binding::New);
        assert_eq!(state.bind(machine("", "spare", "new")), Binding::New);
        assert_eq!(state.bind(machine("", "", "newer")), Binding::New);
        assert_eq!(state.bind(machine("", "spare", "newer")), Binding::Known);
    }
}
