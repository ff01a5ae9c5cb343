//! The one place that changes the books while an agent runs. [`decisions`] has what follows from each event.

mod decisions;

use std::{sync::Arc, time::Duration};

use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Able, EVENTS, Event, Updates, able, download,
    launcher::Launch,
    offer::Artefact,
    report, state,
    store::{Books, Folder, Lack, Refused, TRIES, Trial, prune},
    trial::{Role, Waits, Watch},
};
use crate::{
    caller::Caller,
    config::{Config, UpdateMode},
    data_dir::DataDir,
    settings::InForce,
};

#[derive(Debug)]
pub struct Updater {
    dir: Arc<DataDir>,
    caller: Caller,
    able: Result<Able, String>,
    /// The serial of this process; `None`: the installed program.
    serial: Option<u64>,
    /// The launcher looked for versions at the start.
    is_launched: bool,
    waits: Waits,
    books: Books,
    watch: Option<Watch>,
    /// Set: from then on, a sign of the service is followed by a restart.
    restart_from: Option<Instant>,
    download: Option<(Artefact, AbortOnDropHandle<()>)>,
    /// The newest offer that came during a trial, or while the settings allowed none.
    waiting: Option<Box<UpdateOffer>>,
    settings: watch::Receiver<InForce>,
    events: mpsc::Receiver<Event>,
    state: watch::Sender<UpdateState>,
    restart: CancellationToken,
}

impl Updater {
    pub fn new(
        config: &Config,
        launch: Option<Launch>,
        dir: Arc<DataDir>,
        caller: Caller,
        interval: Duration,
        settings: watch::Receiver<InForce>,
    ) -> (Updates, Self) {
        let waits = Waits {
            trial: config.update_trial,
            interval,
        };
        let (sender, events) = mpsc::channel(EVENTS);
        let able = able(config, launch.as_ref(), &dir);
        if let Err(reason) = &able {
            tracing::debug!(reason, "this agent does not update itself");
        }
        let updater = Self {
            serial: launch.as_ref().and_then(|launch| launch.serial),
            is_launched: config.update != UpdateMode::Off
                && launch.is_some_and(|launch| !launch.keys.is_empty()),
            able,
            waits,
            books: Books::read(dir.path()),
            watch: None,
            restart_from: None,
            download: None,
            waiting: None,
            settings,
            events,
            state: watch::Sender::new(UpdateState::default()),
            restart: CancellationToken::new(),
            caller,
            dir,
        };
        let updater = updater.begun();
        let updates = Updates {
            events: sender,
            state: updater.state.subscribe(),
            restart: updater.restart.clone(),
            back_within: waits.back_within(),
        };
        (updates, updater)
    }

    /// Takes its role, and forgets what the launcher has passed over: files that are not the signed ones, or are older than a
    /// new package.
    fn begun(mut self) -> Self {
        let now = Instant::now();
        let (serial, is_launched) = (self.serial, self.is_launched);
        if is_launched {
            self.books
                .approved
                .take_if(|one| serial.is_none_or(|serial| serial < one.serial));
            let passed_over =
                |trial: &mut Trial| trial.failed.is_none() && serial != Some(trial.serial);
            self.books.trial.take_if(passed_over);
        }
        let state = match (&self.books.trial, &self.able) {
            (Some(trial), _) if serial == Some(trial.serial) => {
                self.watch = Some(Watch::new(Role::Trying, self.waits, now));
                state(UpdateStep::Trying, trial.serial, &trial.version, "")
            }
            (Some(trial), _) if is_launched => {
                let failed = trial.failed.as_ref();
                let (lack, reason) = failed.map_or((Lack::Life, ""), |one| (one.lack, &one.reason));
                self.watch = Some(Watch::new(Role::Judging(lack), self.waits, now));
                state(UpdateStep::Staged, trial.serial, &trial.version, reason)
            }
            (_, Err(reason)) => UpdateState {
                step: UpdateStep::Unable.into(),
                reason: reason.clone(),
                ..UpdateState::default()
            },
            _ => self.settled(),
        };
        self.report(state);
        self
    }

    /// The state while nothing is under way.
    fn settled(&self) -> UpdateState {
        if let Some(refused) = &self.books.refused {
            let Refused {
                serial,
                version,
                reason,
                log_tail,
            } = refused;
            let log_tail = log_tail.clone();
            return UpdateState {
                log_tail,
                ..state(UpdateStep::Refused, *serial, version, reason)
            };
        }
        match &self.books.approved {
            Some(one) if self.serial == Some(one.serial) => {
                state(UpdateStep::Approved, one.serial, &one.version, "")
            }
            _ => UpdateState::default(),
        }
    }

    /// Runs until the agent stops, or stops it for a restart.
    pub async fn run(&mut self, stop: &CancellationToken) {
        if self.is_launched && self.watch.is_none() {
            self.clean().await;
        }
        loop {
            let deadline = self.watch.as_ref().and_then(Watch::deadline);
            tokio::select! {
                Some(event) = self.events.recv() => match event {
                    Event::Heard(sign, may_restart) => self.heard(sign, may_restart).await,
                    Event::Offer(offer) => self.offered(offer).await,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if let Some(watch) = &self.watch {
                        let verdict = watch.overdue();
                        self.judged(verdict).await;
                    }
                }
                Ok(()) = self.settings.changed() => {
                    if let Some(offer) = self.waiting.take() {
                        self.offered(offer).await;
                    }
                }
                artefact = downloaded(&mut self.download) => self.staged(artefact).await,
            }
            if self.restart.is_cancelled() {
                stop.cancel();
                return std::future::pending().await;
            }
        }
    }

    /// After the agent has stopped on purpose: that was not the new version's fault.
    pub fn stopped(&mut self) {
        let is_trying = self.watch.as_ref().is_some_and(Watch::is_trying);
        if let Some(trial) = &mut self.books.trial
            && is_trying
            && !self.restart.is_cancelled()
        {
            trial.tries = (trial.tries + 1).min(TRIES);
            if let Err(error) = self.books.save(&self.dir) {
                tracing::warn!(%error, "the books of updates cannot be written");
            }
        }
    }

    fn start(&mut self, artefact: Artefact) {
        tracing::info!(serial = artefact.serial, version = %artefact.version, "an update is offered");
        self.report(state(
            UpdateStep::Offered,
            artefact.serial,
            &artefact.version,
            "",
        ));
        let (caller, waits, sender) = (self.caller.clone(), self.waits, self.state.clone());
        let folder = Folder::of(self.dir.path(), artefact.serial);
        let wanted = artefact.clone();
        let task = tokio::spawn(async move {
            let tell = |failure: Option<&str>| {
                let step = match failure {
                    None => UpdateStep::Downloading,
                    Some(_) => UpdateStep::Offered,
                };
                let reason = failure.unwrap_or_default();
                report(&sender, state(step, wanted.serial, &wanted.version, reason));
            };
            download::obtain(&wanted, &caller, &folder, waits, tell).await;
        });
        self.download = Some((artefact, AbortOnDropHandle::new(task)));
    }

    async fn staged(&mut self, artefact: Artefact) {
        let Artefact {
            serial, version, ..
        } = artefact;
        self.books.trial = Some(Trial {
            serial,
            version: version.clone(),
            tries: TRIES,
            failed: None,
            doubts: 0,
        });
        if !self.save().await {
            self.books.trial = None;
            return self.report(state(
                UpdateStep::Unable,
                serial,
                &version,
                "the data folder cannot be written",
            ));
        }
        tracing::info!(serial, %version, "an update is ready");
        self.report(state(UpdateStep::Staged, serial, &version, ""));
        self.restart_from = Some(Instant::now());
    }

    fn restart(&self) {
        tracing::info!("the agent restarts for an update");
        self.restart.cancel();
    }

    fn report(&self, state: UpdateState) {
        report(&self.state, state);
    }

    /// Whether the books are on disk.
    async fn save(&self) -> bool {
        let (books, dir) = (self.books.clone(), self.dir.clone());
        match spawn_blocking(move || books.save(&dir)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the books of updates cannot be written");
                false
            }
            Err(_) => false,
        }
    }

    /// Writes the books first: a folder that they name is never missing.
    async fn clean(&self) {
        let unchanged = Books::read(self.dir.path()) == self.books;
        if !unchanged && !self.save().await {
            return;
        }
        let (books, dir, serial) = (self.books.clone(), self.dir.clone(), self.serial);
        drop(spawn_blocking(move || prune(dir.path(), &books, serial)).await);
    }
}

/// Completes with the download; pending forever without one.
async fn downloaded(download: &mut Option<(Artefact, AbortOnDropHandle<()>)>) -> Artefact {
    let Some((artefact, task)) = download else {
        return std::future::pending().await;
    };
    let ended = task.await;
    let artefact = artefact.clone();
    *download = None;
    match ended {
        Ok(()) => artefact,
        // It panicked; the next offer starts it again.
        Err(_) => std::future::pending().await,
    }
}
