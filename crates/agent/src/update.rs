//! Updates: the agent replaces itself by versions that were signed offline, tries them, and goes back by itself.
//!
//! In reading order: [`store`] is what is kept on disk; [`keys`] are those who may sign; [`launcher`] decides at the start which
//! version runs; [`offer`] judges what the service offers; [`download`] gets it; [`trial`] has the rules by which a version is
//! approved, or counts as failed.
//!
//! [`Updater`] is the one place that changes the books while an agent runs. It is a task beside the heartbeats, which tell it
//! what they hear, and its disk work runs on other threads. A restart ends the agent as a signal does, with a Goodbye that says
//! when it is back; the command line then starts the launcher in its place.

mod download;
mod keys;
pub mod launcher;
mod offer;
mod store;
mod trial;
pub mod watchdog;

use std::{path::PathBuf, sync::Arc, time::Duration};

use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use svc_release::{PublicKey, Update, Version};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{caller::Caller, config::Config, data_dir::DataDir, facts};
use launcher::Launch;
use offer::{Answer, Artefact, Host, Unfit, manifest_digest};
use store::{Approved, Books, Folder, Lack, Refused, TRIES, Trial, prune};
use trial::{Role, Sign, Verdict, Waits, Watch};

/// The setting `update`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On, but not in a container, whose image would undo it.
    Auto,
    On,
    Off,
}

/// What the heartbeats tell. If the channel is full because the disk stalls, an event is dropped: each of them comes again.
const EVENTS: usize = 16;
/// The longest text for people that travels to the service.
const LONGEST_REASON: usize = 200;

enum Event {
    Heard(Sign),
    Offer(Box<UpdateOffer>),
}

/// The platform of this program, as manifests name it.
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Where a version on trial also writes its log; `None`: this process is not one.
pub fn trial_log(config: &Config) -> Option<PathBuf> {
    let serial = Launch::given()?.serial?;
    let trial = Books::read(&config.data_dir).trial?;
    (trial.serial == serial).then(|| Folder::of(&config.data_dir, serial).log())
}

/// The heartbeats' side.
#[derive(Clone, Debug)]
pub struct Updates {
    events: mpsc::Sender<Event>,
    state: watch::Receiver<UpdateState>,
    restart: CancellationToken,
    back_within: Duration,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Event")
    }
}

impl Updates {
    pub fn welcomed(&self) {
        self.tell(Event::Heard(Sign::Welcome));
    }

    pub fn acknowledged(&self) {
        self.tell(Event::Heard(Sign::Acknowledgement));
    }

    pub fn offered(&self, offer: UpdateOffer) {
        self.tell(Event::Offer(Box::new(offer)));
    }

    fn tell(&self, event: Event) {
        drop(self.events.try_send(event));
    }

    /// What the service should know.
    pub fn state(&self) -> watch::Receiver<UpdateState> {
        self.state.clone()
    }

    /// Set: the agent stops in order to start again within this time.
    pub fn restart(&self) -> Option<Duration> {
        self.restart.is_cancelled().then_some(self.back_within)
    }
}

/// What taking an update needs besides the offer.
#[derive(Debug)]
struct Able {
    keys: Vec<PublicKey>,
    running: Version,
    installed: Version,
}

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
    /// The newest offer that came during a trial.
    waiting: Option<Box<UpdateOffer>>,
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
            is_launched: config.update != Mode::Off
                && launch.is_some_and(|launch| !launch.keys.is_empty()),
            able,
            waits,
            books: Books::read(dir.path()),
            watch: None,
            restart_from: None,
            download: None,
            waiting: None,
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
                    Event::Heard(sign) => self.heard(sign).await,
                    Event::Offer(offer) => self.offered(offer).await,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if let Some(watch) = &self.watch {
                        let verdict = watch.overdue();
                        self.judged(verdict).await;
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

    async fn heard(&mut self, sign: Sign) {
        let now = Instant::now();
        if let Some(verdict) = self.watch.as_mut().and_then(|watch| watch.heard(sign, now)) {
            self.judged(verdict).await;
        } else if self.restart_from.is_some_and(|from| now >= from) {
            self.restart();
        }
    }

    async fn judged(&mut self, verdict: Verdict) {
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
                self.report(state(UpdateStep::Approved, serial, &trial.version, ""));
                self.clean().await;
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
                    self.restart();
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

    /// A version on trial takes offers when its trial is over.
    async fn offered(&mut self, offer: Box<UpdateOffer>) {
        if self.watch.is_some() || self.restart_from.is_some() {
            self.waiting = Some(offer);
            return;
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
                let mut unable = update.map_or_else(
                    UpdateState::default,
                    |Update {
                         serial, version, ..
                     }| { state(UpdateStep::Unable, serial, &version, "") },
                );
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
                self.report(state(UpdateStep::Approved, serial, version, ""))
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

fn able(config: &Config, launch: Option<&Launch>, dir: &DataDir) -> Result<Able, String> {
    let reason = match config.update {
        Mode::Off => Some("update = \"off\" in the settings"),
        Mode::Auto if facts::is_container() => {
            Some("it runs in a container: replace its image, or set update = \"on\"")
        }
        _ => None,
    };
    if let Some(reason) = reason {
        return Err(reason.into());
    }
    let launch = launch.ok_or("it was not started by `svc-agent run`")?;
    let running = crate::release::own_version().ok_or("its version is not a number")?;
    let flags = rustix::fs::statvfs(dir.path()).map(|disk| disk.f_flag);
    if flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC)) {
        return Err("programs cannot be started from data_dir (noexec)".into());
    }
    let mut keys = keys::trusted(config)?;
    keys.retain(|key| launch.keys.contains(&key.fingerprint()));
    if keys.is_empty() {
        return Err(
            "the installed package trusts none of the keys of this version: upgrade it".into(),
        );
    }
    Ok(Able {
        keys,
        running,
        installed: launch.version.clone(),
    })
}

fn state(step: UpdateStep, serial: u64, version: &Version, reason: &str) -> UpdateState {
    UpdateState {
        step: step.into(),
        serial,
        version: version.to_string(),
        reason: reason.into(),
        ..UpdateState::default()
    }
}

fn report(sender: &watch::Sender<UpdateState>, mut state: UpdateState) {
    state.platform = platform();
    state.reason = state
        .reason
        .chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_REASON)
        .collect();
    sender.send_if_modified(|known| {
        let is_new = *known != state;
        *known = state;
        is_new
    });
}
