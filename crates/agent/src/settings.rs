//! Settings that the service sends: how an operator wants this agent to behave.
//!
//! They are complete each time, and have a hash that the agent repeats and never computes. What the agent says of them is what
//! it does: `running_hash` names the settings in force, but for the fields that it refuses, and comes from the file that it
//! starts with. So a machine that was restored from a snapshot says the old hash, and is sent the new settings.
//!
//! No field is an address, a trust anchor, a key or a folder, and a refused one leaves the agent's own value: no settings can
//! cut it off. `check` decides about each field; `agent/settings.rs` puts them in force.

mod check;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use prost::Message;
use svc_proto::v1::{AgentSettings, RefusedSetting, SettingsState};
use svc_release::digest;
use tokio::sync::watch;

use crate::{
    config::Config,
    data_dir::{DataDir, SETTINGS},
    spool::Limits,
};
pub use check::{InForce, Log, Update};
use check::{check, is_hash, refusal, unusable};

/// The newest settings of the service that could be used.
#[derive(Debug)]
pub struct Settings {
    in_force: watch::Sender<InForce>,
    state: watch::Sender<SettingsState>,
}

impl Settings {
    /// Those of the last run. A file that is damaged, or is not the agent's, counts as none: the service sends them again.
    pub fn load(dir: &DataDir, config: &Config) -> Self {
        let settings = Self {
            in_force: watch::Sender::new(check(&AgentSettings::default(), config, None).0),
            state: watch::Sender::default(),
        };
        let read = dir.read(SETTINGS);
        if let Some(text) = read.unwrap_or_else(|_| Some(String::new())) {
            match parsed(&text).filter(|kept| unusable(kept).is_none()) {
                Some(kept) => settings.put_in_force(&kept, config, None),
                None => tracing::warn!("the file with the service's settings is damaged"),
            }
        }
        settings
    }

    /// Puts settings in force, but for the fields that it refuses, and returns the content of the file. `None`: they are not new,
    /// or not usable at all. Then those before them stay in force.
    pub fn take(
        &self,
        given: &AgentSettings,
        config: &Config,
        now: Option<Timestamp>,
    ) -> Option<String> {
        if let Some(reason) = unusable(given) {
            self.refuse_all(given, reason);
            return None;
        }
        let is_known = {
            let state = self.state.borrow();
            state.received_hash == given.hash && state.running_hash == given.hash
        };
        if is_known {
            return None;
        }
        self.put_in_force(given, config, now);
        Some(text(given))
    }

    fn refuse_all(&self, given: &AgentSettings, reason: &str) {
        self.in_force.send_modify(|in_force| {
            let text = format!("refused: {reason}");
            in_force.shown.insert("hash".into(), text);
        });
        self.state.send_modify(|state| {
            if is_hash(&given.hash) {
                state.received_hash.clone_from(&given.hash);
            }
            state.refused.retain(|one| one.field != "hash");
            state.refused.push(refusal("hash", reason));
        });
    }

    fn put_in_force(&self, given: &AgentSettings, config: &Config, now: Option<Timestamp>) {
        let (in_force, refused) = check(given, config, now);
        for RefusedSetting { field, reason } in &refused {
            tracing::warn!(field, reason, "a setting of the service is refused");
        }
        self.in_force.send_replace(in_force);
        self.state.send_replace(SettingsState {
            running_hash: given.hash.clone(),
            received_hash: given.hash.clone(),
            refused,
        });
    }

    /// A borrow must not be held across an await.
    pub fn in_force(&self) -> watch::Ref<'_, InForce> {
        self.in_force.borrow()
    }

    pub fn follow(&self) -> watch::Receiver<InForce> {
        self.in_force.subscribe()
    }

    /// The limits of the spool, of which `own` are the machine's.
    pub fn spool(&self, own: Limits) -> Limits {
        let bytes = self.in_force().spool_bytes.unwrap_or(own.bytes);
        Limits { bytes, ..own }
    }

    /// What the service should know.
    pub fn state(&self) -> watch::Ref<'_, SettingsState> {
        self.state.borrow()
    }

    pub fn follow_state(&self) -> watch::Receiver<SettingsState> {
        self.state.subscribe()
    }
}

/// A checksum, which tells damage from settings, and `AgentSettings` as it was sent.
fn text(given: &AgentSettings) -> String {
    let bytes = given.encode_to_vec();
    format!("{} {}\n", sha256(&bytes), BASE64_STANDARD.encode(&bytes))
}

fn parsed(text: &str) -> Option<AgentSettings> {
    let (checksum, settings) = text.trim_end().split_once(' ')?;
    let bytes = BASE64_STANDARD.decode(settings).ok()?;
    let is_whole = sha256(&bytes) == checksum;
    AgentSettings::decode(&bytes[..]).ok().filter(|_| is_whole)
}

fn sha256(bytes: &[u8]) -> String {
    digest(bytes).map(|(_, sha256)| sha256).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::config::Flags;

    fn config() -> Config {
        let variables =
            |name: &str| (name == "SVC_AGENT_INGEST_ADDRESS").then(|| "a.example".into());
        Config::read(&Flags::default(), &variables).unwrap()
    }

    fn given(hash: u8, spool_bytes: u64) -> AgentSettings {
        AgentSettings {
            hash: vec![hash],
            spool_bytes: Some(spool_bytes),
            ..AgentSettings::default()
        }
    }

    #[test]
    fn settings_survive_a_restart_and_are_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, config) = (DataDir::open(folder.path()).unwrap(), config());
        let settings = Settings::load(&dir, &config);
        assert_eq!(*settings.state(), SettingsState::default());
        let new = given(1, 1 << 20);
        let text = settings.take(&new, &config, None).unwrap();
        dir.write(SETTINGS, &text).unwrap();
        assert_eq!(settings.take(&new, &config, None), None, "it is known");

        let again = Settings::load(&dir, &config);
        assert_eq!(*again.state(), *settings.state());
        assert_eq!(again.state().running_hash, [1]);
        assert_eq!(again.spool(Limits::default()).bytes, 1 << 20);
        assert_eq!(again.take(&new, &config, None), None);

        // Complete each time: what is absent is the machine's own again.
        let none = AgentSettings {
            hash: vec![2],
            ..AgentSettings::default()
        };
        assert!(again.take(&none, &config, None).is_some());
        assert_eq!(again.spool(Limits::default()), Limits::default());
    }

    #[test]
    fn settings_that_cannot_be_used_leave_those_before_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, config) = (DataDir::open(folder.path()).unwrap(), config());
        let settings = Settings::load(&dir, &config);
        settings.take(&given(1, 1 << 20), &config, None).unwrap();
        let mut large = given(2, 2 << 20);
        large.log = Some(svc_proto::v1::LogLevel {
            level: "x".repeat(2048),
            until: None,
        });
        for _ in 0..3 {
            assert_eq!(settings.take(&large, &config, None), None);
            let state = settings.state();
            assert_eq!(
                (&state.running_hash[..], &state.received_hash[..]),
                (&[1][..], &[2][..])
            );
            assert_eq!(state.refused.len(), 1, "{state:?}");
        }
        let mut long = large.clone();
        long.hash = vec![3; 33];
        assert_eq!(settings.take(&long, &config, None), None);
        assert_eq!(settings.state().received_hash, [2]);
        assert_eq!(settings.in_force().spool_bytes, Some(1 << 20));
        assert!(settings.take(&given(3, 3 << 20), &config, None).is_some());
        assert_eq!(settings.state().refused, []);
    }

    proptest! {
        #[test]
        fn a_damaged_file_counts_as_none(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
            let folder = tempfile::tempdir().unwrap();
            let (dir, config) = (DataDir::open(folder.path()).unwrap(), config());
            let given = given(1, 1 << 20);
            let mut bytes = text(&given).into_bytes();
            let at = at.index(bytes.len());
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] = byte,
            }
            fs::write(folder.path().join(SETTINGS), bytes).unwrap();
            let state = Settings::load(&dir, &config).state().clone();
            // A changed space at the end damages nothing.
            let whole = SettingsState {
                running_hash: vec![1],
                received_hash: vec![1],
                refused: Vec::new(),
            };
            prop_assert!(state == SettingsState::default() || state == whole, "{state:?}");
        }
    }
}
