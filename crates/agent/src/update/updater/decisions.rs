//! What follows from what the heartbeats tell: verdicts about a version, and answers to offers.

use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use tokio::{task::spawn_blocking, time::Instant};

use super::Updater;
use crate::update::{
    offer::{Answer, Host, Unfit, manifest_digest},
    platform, state,
    store::{Approved, Folder, Refused, TRIES, Trial},
    trial::{Sign, Verdict},
};

const OFF: &str = "updates are off in the settings of the service";

impl Updater {
    pub(super) async fn heard(&mut self, sign: Sign, may_restart: bool) {
        let now = Instant::now();
        if let Some(verdict) = self.watch.as_mut().and_then(|watch| watch.heard(sign, now)) {
            self.judged(verdict).await;
        } else if may_restart && self.restart_from.is_some_and(|from| now >= from) {
            self.restart();
        }
    }

    pub(super) async fn judged(&mut self, verdict: Verdict) {
        self.watch = None;
        let Some(mut trial) = self.books.trial.take() else {
            return;
        };
        let serial = trial.serial;
        match verdict {
            Verdict::Approved => {
                tracing::info!(serial, "this version is approved");
                self.books.approved = Some(Approved {
                    serial,
                    version: trial.version.clone(),
                });
                self.books.refused = None;
                self.clean().await;
                self.report(state(UpdateStep::Approved, serial, &trial.version, ""));
                if let Some(offer) = self.waiting.take() {
                    self.offered(offer).await;
                }
            }
            Verdict::GoBack(failed) => {
                tracing::warn!(
                    serial,
                    reason = failed.reason,
                    "this version goes back to the one before"
                );
                trial.failed = Some(failed);
                self.books.trial = Some(trial);
                self.save().await;
                self.restart();
            }
            Verdict::Excused => {
                tracing::warn!(
                    serial,
                    "this version does not reach the service either: the new one is not at fault"
                );
                (trial.failed, trial.tries) = (None, (trial.tries + 1).min(TRIES));
                let pause = self.waits.pause(trial.doubts);
                trial.doubts = trial.doubts.saturating_add(1);
                self.report(state(
                    UpdateStep::Staged,
                    serial,
                    &trial.version,
                    "the service could not be reached",
                ));
                self.books.trial = Some(trial);
                self.save().await;
                self.restart_from = Some(Instant::now() + pause);
            }
            Verdict::Against if trial.tries > 0 => {
                tracing::warn!(
                    serial,
                    tries = trial.tries,
                    "the new version is tried again"
                );
                trial.failed = None;
                self.books.trial = Some(trial);
                if self.save().await {
                    self.restart_from = Some(Instant::now());
                }
            }
            Verdict::Against => self.refuse(trial).await,
        }
    }

    async fn refuse(&mut self, trial: Trial) {
        let folder = Folder::of(self.dir.path(), trial.serial);
        let log_tail = spawn_blocking(move || folder.log_tail()).await;
        let reason = trial.failed.map(|failed| failed.reason).unwrap_or_default();
        tracing::error!(
            serial = trial.serial,
            reason,
            "the new version does not work on this host"
        );
        self.books.refused = Some(Refused {
            serial: trial.serial,
            version: trial.version,
            reason,
            log_tail: log_tail.unwrap_or_default(),
        });
        self.report(self.settled());
        self.clean().await;
    }

    /// A version on trial takes offers when its trial is over, and every version when the settings allow updates.
    pub(super) async fn offered(&mut self, offer: Box<UpdateOffer>) {
        if self.watch.is_some() || self.restart_from.is_some() {
            self.waiting = Some(offer);
            return;
        }
        if self.able.is_ok() && !self.settings.borrow().allows_updates() {
            let (step, reason) = (UpdateStep::Unable.into(), OFF.into());
            self.waiting = Some(offer);
            return self.report(UpdateState {
                step,
                reason,
                ..UpdateState::default()
            });
        }
        let Ok(able) = &self.able else {
            return; // The state has the reason.
        };
        let host = Host {
            keys: &able.keys,
            platform: &platform(),
            running: &able.running,
            installed: &able.installed,
            books: &self.books,
        };
        let (update, answer) = match host.judge(&offer) {
            Ok(judged) => judged,
            Err(Unfit { update, reason }) => {
                tracing::warn!(
                    reason,
                    "an update was offered that this agent does not take"
                );
                let mut unable = update.map_or_else(UpdateState::default, |update| {
                    state(UpdateStep::Unable, update.serial, &update.version, "")
                });
                unable.set_step(UpdateStep::Unable);
                unable.reason = reason;
                return self.report(unable);
            }
        };
        let (serial, version) = (update.serial, &update.version);
        if self
            .download
            .as_ref()
            .is_some_and(|(artefact, _)| artefact.serial == serial)
        {
            return;
        }
        if answer == Answer::Known {
            return self.report(self.settled());
        }
        self.download = None;
        let before = self.books.clone();
        self.books.highest = serial;
        self.books.digest = manifest_digest(&offer.manifest);
        (self.books.trial, self.books.refused) = (None, None);
        if answer == Answer::GoBack {
            self.books.approved = None;
        }
        if !self.save().await {
            self.books = before;
            return self.report(state(
                UpdateStep::Unable,
                serial,
                version,
                "the data folder cannot be written",
            ));
        }
        match answer {
            Answer::Download(artefact) => self.start(*artefact),
            Answer::GoBack => {
                self.report(state(UpdateStep::Staged, serial, version, ""));
                self.restart_from = Some(Instant::now());
            }
            Answer::Runs | Answer::Known => {
                self.report(state(UpdateStep::Approved, serial, version, ""));
            }
        }
    }
}
