//! How an agent of a fleet follows settings: it runs all of them at once, but refuses an interval, which its test decides.

use svc_proto::v1::{RefusedSetting, Report, Settings, SettingsState};

/// What an agent says of settings that it was sent. It notes them. `None` if it has them already, or if they are not its own.
pub(super) fn taken(state: &mut SettingsState, sent: &Settings) -> Option<Report> {
    let own = sent.agent.as_ref()?;
    let is_new = own.hash != state.received_hash;
    is_new.then(|| {
        let refused = own.interval.map(|_| RefusedSetting {
            field: "interval".into(),
            reason: "the test decides it".into(),
        });
        *state = SettingsState {
            running_hash: own.hash.clone(),
            received_hash: own.hash.clone(),
            refused: refused.into_iter().collect(),
        };
        Report {
            settings: Some(state.clone()),
            ..Report::default()
        }
    })
}
