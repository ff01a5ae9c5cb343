//! Settings on the wire: what an agent says about its own, and what it is sent.

use svc_store::{AgentSettings, RefusedSetting, SettingsReport, WantedSettings};

use super::convert;
use crate::config::Agents;
use svc_proto::{contract::limits::MAX_TEXT_BYTES, v1};

const HASH_BYTES: usize = 32;
/// AgentSettings has fewer fields.
const MOST_REFUSED: usize = 16;
const LONGEST_FIELD: usize = 63;

/// An agent must not lose its stream over what it says about its settings, so texts are cut instead of refused.
pub(super) fn said(state: v1::SettingsState) -> SettingsReport {
    let hash = |mut hash: Vec<u8>| {
        hash.truncate(HASH_BYTES);
        hash
    };
    let refused = state.refused.into_iter().take(MOST_REFUSED);
    let refused = refused.map(|refused| RefusedSetting {
        field: convert::cut(&refused.field, LONGEST_FIELD),
        reason: convert::cut(&refused.reason, MAX_TEXT_BYTES),
    });
    SettingsReport {
        running: hash(state.running_hash),
        received: hash(state.received_hash),
        refused: refused.collect(),
    }
}

/// What every agent is told, and what this one is to run.
pub(super) fn message(agents: &Agents, wanted: Option<&WantedSettings>) -> v1::Settings {
    let interval = prost_types::Duration::try_from(agents.heartbeat_interval).unwrap_or_default();
    v1::Settings {
        heartbeat_interval: Some(interval),
        release: Some(v1::AgentRelease {
            version: agents.latest_version.clone().unwrap_or_default(),
            download_base_url: convert::base_url(agents.download_base_url.as_str()),
        }),
        agent: wanted.map(|wanted| settings(&wanted.settings, &wanted.hash)),
    }
}

fn settings(settings: &AgentSettings, hash: &[u8]) -> v1::AgentSettings {
    let list = |values: &Option<Vec<String>>| {
        let values = values.clone()?;
        Some(v1::TextList { values })
    };
    let interval = settings.interval.map(|seconds| prost_types::Duration {
        seconds: seconds.into(),
        nanos: 0,
    });
    let log = settings.log.as_ref().map(|log| v1::LogLevel {
        level: log.level.clone(),
        until: Some(prost_types::Timestamp {
            seconds: log.until,
            nanos: 0,
        }),
    });
    let update = settings.update.as_ref().map(|update| v1::UpdatePolicy {
        on: update.on,
        hours: update.hours.clone(),
    });
    v1::AgentSettings {
        hash: hash.to_vec(),
        interval,
        left_out: list(&settings.left_out),
        ignored_mounts: list(&settings.ignored_mounts),
        ignored_file_systems: list(&settings.ignored_file_systems),
        ignored_interfaces: list(&settings.ignored_interfaces),
        log,
        spool_bytes: settings.spool_bytes,
        update,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_about_its_settings_is_cut_to_size() {
        let refused = v1::RefusedSetting {
            field: "f".repeat(100),
            reason: format!("not\u{0} now{}", "é".repeat(200)),
        };
        let said = said(v1::SettingsState {
            running_hash: vec![7; 100],
            received_hash: vec![],
            refused: vec![refused; 100],
        });
        assert_eq!((said.running, said.received), (vec![7; 32], vec![]));
        assert_eq!(said.refused.len(), MOST_REFUSED);
        let first = &said.refused[0];
        assert_eq!(first.field.len(), LONGEST_FIELD);
        assert!(first.reason.starts_with("not now") && first.reason.len() <= MAX_TEXT_BYTES);
    }
}
