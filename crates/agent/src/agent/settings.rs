//! Puts the settings of the service in force, without a restart.

use std::time::Duration;

use jiff::Timestamp;
use svc_proto::v1::AgentSettings;
use tokio::{sync::watch, time::timeout};

use super::Agent;
use crate::{
    data_dir::SETTINGS,
    recorder::Recorder,
    settings::{InForce, Log},
    telemetry,
};

/// The end of a log level is looked for this often: the machine may be suspended, and its time may be corrected.
const LOOK: Duration = Duration::from_mins(1);

impl Agent {
    /// A failure to write the file does not stop the agent: after a restart it says the old hash, and is sent them again.
    pub(super) fn take_settings(&mut self, given: &AgentSettings) {
        let now = Timestamp::try_from(self.recorder.now()).ok();
        if let Some(text) = self.settings.take(given, &self.config, now) {
            tracing::info!("new settings of the service are in force");
            self.recorder.write_file(SETTINGS, text, true);
        }
        self.put_in_force();
    }

    pub(super) fn put_in_force(&self) {
        let in_force = self.settings.in_force().clone();
        self.recorder.leave_out(in_force.filter);
        let limits = self.settings.spool(self.config.spool);
        self.recorder.limit_spool(limits.bytes);
        self.sample_at_interval();
        self.board
            .change_rare(|rare| rare.settings = in_force.shown);
    }

    /// By the service's time: the machine's own may be wrong.
    pub(super) fn may_restart(&self) -> bool {
        let now = Timestamp::try_from(self.recorder.now());
        now.is_ok_and(|now| self.settings.in_force().allows_restart(now))
    }
}

/// Sets the log level, and sets it back when its time is over. Runs for ever.
pub(super) async fn keep_log_level(mut settings: watch::Receiver<InForce>, recorder: &Recorder) {
    let mut known = None;
    loop {
        let log = settings.borrow_and_update().log;
        let left = log.and_then(|log| left(log, Timestamp::try_from(recorder.now()).ok()?));
        let level = log.filter(|_| left.is_some()).map(|log| log.level);
        if level != known {
            telemetry::set_level(level);
            known = level;
            match log.filter(|_| level.is_some()) {
                Some(Log { level, until }) => {
                    tracing::info!(%level, %until, "the service sets the log level");
                }
                None => tracing::info!("the log level is this machine's own again"),
            }
        }
        let changed = settings.changed();
        let changed = match log {
            Some(_) => timeout(left.map_or(LOOK, |left| left.min(LOOK)), changed).await,
            None => Ok(changed.await),
        };
        if let Ok(Err(_)) = changed {
            return std::future::pending().await;
        }
    }
}

/// How long a level is still valid; `None`: no longer.
fn left(log: Log, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(log.until.duration_since(now)).ok();
    left.filter(|left| !left.is_zero())
}
