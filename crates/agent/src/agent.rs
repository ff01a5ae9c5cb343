//! The running agent: it registers until it is admitted, holds a heartbeat stream while
//! it is, and reconnects when the stream is lost. A clone of another machine's disk takes
//! a key of its own first.
//!
//! The agent is a loop over three activities, and its state decides which one is next:
//!
//! | state | activity | module |
//! |---|---|---|
//! | the service reported this disk as a clone, or as an old copy | take a successor key | `successor` |
//! | no JWT | register | `enrol` |
//! | a JWT | hold a heartbeat stream | `session` |
//!
//! An activity that fails ends in `Agent::after_failure`, which changes the state and
//! returns a wait. `persist` writes state changes to disk and to the status file. Samples
//! are taken by the [`Recorder`] in parallel, whatever happens to the connection. `keys` changes the
//! agent's key while it holds a stream.
//!
//! Invariant: every return to the service after a failure goes through `Agent::wait`,
//! with the service's hint or a growing backoff. So no refusal causes a busy loop.

mod admission;
mod cell;
mod enrol;
mod keys;
mod persist;
mod session;
mod settings;
mod successor;

use std::{path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use svc_proto::contract::{Action, Backoff};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use keys::Keys;

use crate::{
    caller::{CallError, Caller, Facts},
    cell::Cell,
    clock::Clock,
    config::Config,
    data_dir::{DataDir, DataDirError, IDENTITY, STATE, SUCCESSOR, short},
    identity::{Identity, IdentityError},
    recorder::{Recorder, Sampling},
    release::{Notice, version},
    settings::Settings,
    spool::{Spool, SpoolError},
    state::{Binding, Machine, State},
    status::{Board, Enrolment, Rare, Status},
    timing::Timing,
    update::{Updater, Updates, launcher::Launch, watchdog},
    wire::{Addresses, Names},
};

/// What an agent takes from its machine, and a test may replace.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub clock: Clock,
    pub facts: Facts,
    pub names: Names,
    pub timing: Timing,
    /// How the process was started; without it, the agent does not update itself.
    pub launch: Option<Launch>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            facts: Facts::OfThisMachine,
            names: Names::OfTheSystem,
            timing: Timing::default(),
            launch: None,
        }
    }
}

/// Why an agent cannot start or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

/// An agent with its data folder open, ready to run.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    timing: Timing,
    dir: Arc<DataDir>,
    state: State,
    caller: Caller,
    keys: Keys,
    boot_id: String,
    recorder: Arc<Recorder>,
    board: Arc<Board>,
    sampling: watch::Sender<Sampling>,
    settings: Settings,
    /// The interval for agents whose settings name none.
    interval: Duration,
    addresses: Addresses,
    backoff: Backoff,
    /// The disk is a clone: its machine differs, or the service refused its key with
    /// IDENTITY_IN_USE for long enough.
    is_clone: bool,
    /// Since when the service has refused the key so.
    refused_since: Option<Instant>,
    noticed: Option<Notice>,
    updates: Updates,
    updater: Option<Updater>,
    /// The highest number that this process has sent.
    highest_sent: u64,
    /// Since when its cell has not answered.
    unreachable_since: Option<Instant>,
    /// Why it did not move to another cell.
    cell_problem: String,
    stop: CancellationToken,
}

/// What the main loop does after an activity.
enum Next {
    /// Start the next activity now.
    Continue,
    /// Start it after this time.
    Wait(Duration),
    Stop,
}

impl Agent {
    /// Opens the data folder. The first start creates the key.
    pub fn open(config: Config, surroundings: Surroundings) -> Result<Self, AgentError> {
        let Surroundings {
            clock,
            facts,
            names,
            timing,
            launch,
        } = surroundings;
        let dir = Arc::new(DataDir::open(&config.data_dir)?);
        let identity = identity(&dir, &config)?;
        let mut state = State::load(&dir)?;
        let keys = Keys::open(&dir, &config, identity)?;
        let settings = Settings::load(&dir, &config);
        let limits = settings.spool(config.spool);
        let spool = Spool::open(&dir.spool(&keys.present.spool()), limits)?;
        let interval = state.interval().unwrap_or(timing.interval);
        let (sampling, _) = watch::channel(Sampling {
            on: state.is_admitted(),
            interval,
        });
        let mut is_clone = dir.read(SUCCESSOR)?.is_some();
        let route = config.route(names);
        let timeouts = timing.timeouts;
        let caller = Caller::new(&config, keys.first(), facts, clock.clone(), timeouts, route);
        let (updates, updater) = Updater::new(
            &config,
            launch,
            dir.clone(),
            caller.clone(),
            settings.in_force().interval.unwrap_or(interval),
            settings.follow(),
        );
        let caller = caller
            .reporting(updates.state())
            .stating(settings.follow_state());
        let certificates = state.cell.as_ref().map(Cell::certificates);
        caller.anchors().live_in(certificates.unwrap_or_default());
        let here = caller.facts();
        let (boot_id, machine) = (here.boot_id.clone(), Machine::of(&here));
        let binding = state.bind(machine);
        // A key of the site's own PKI is not the agent's to change.
        if binding == Binding::Copy && config.client_pair.is_none() {
            tracing::warn!("this key belongs to another machine: this disk is a copy");
            is_clone = true;
        }
        let known = state.time(&boot_id);
        let recorder = Recorder::start(spool, dir.clone(), clock, &boot_id, known)?;
        if binding == Binding::New {
            recorder.write_file(STATE, state.text(), true);
        }
        let agent = Self {
            board: Arc::new(Board::new(at_start(&caller, &state, dir.path()))),
            recorder: Arc::new(recorder),
            caller,
            keys,
            boot_id,
            addresses: Addresses::new(cell::addresses(state.cell.as_ref(), &config)),
            backoff: Backoff::default(),
            stop: CancellationToken::new(),
            noticed: None,
            highest_sent: 0,
            unreachable_since: None,
            cell_problem: String::new(),
            updates,
            updater: Some(updater),
            config,
            timing,
            dir,
            state,
            sampling,
            settings,
            interval,
            is_clone,
            refused_since: None,
        };
        agent.put_in_force();
        Ok(agent)
    }

    pub fn recorder(&self) -> Arc<Recorder> {
        self.recorder.clone()
    }

    /// What is known about updates, also after the agent has ended.
    pub fn updates(&self) -> Updates {
        self.updates.clone()
    }

    /// Runs until `stop` is cancelled, or until the agent has to restart for an update; then sends Goodbye.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), AgentError> {
        self.stop = stop.child_token();
        let (mut updater, stopping) = (self.updater.take(), self.stop.clone());
        let updating = async {
            match &mut updater {
                Some(updater) => updater.run(&stopping).await,
                None => std::future::pending().await,
            }
        };
        let (recorder, board) = (self.recorder.clone(), self.board.clone());
        let fingerprint = self.caller.identity().fingerprint();
        tracing::info!(
            version = version(),
            key = short(&fingerprint),
            fingerprint,
            "the agent starts"
        );
        let sampling = recorder.run(self.sampling.subscribe());
        let status = board.run(&recorder, self.timing.status);
        let shown = board.follow(self.updates.state());
        let log = settings::keep_log_level(self.settings.follow(), &recorder);
        let ended = tokio::select! {
            ended = self.main_loop() => ended,
            () = sampling => Ok(()),
            () = status => Ok(()),
            () = shown => Ok(()),
            () = log => Ok(()),
            () = updating => Ok(()),
            () = watchdog::run() => Ok(()),
        };
        if let Some(updater) = updater.as_mut().filter(|_| stop.is_cancelled()) {
            updater.stopped();
        }
        self.board
            .change(|status| status.connection = Default::default());
        self.board.write(&self.recorder);
        tracing::info!("the agent stops");
        ended
    }

    async fn main_loop(&mut self) -> Result<(), AgentError> {
        loop {
            let next = match self.state.credential() {
                _ if self.is_clone => self.take_successor().await?,
                None => self.enrol().await,
                Some(credential) => self.heartbeat(credential).await,
            };
            match next {
                Next::Continue => {}
                Next::Stop => return Ok(()),
                Next::Wait(wait) => {
                    if self.wait(wait).await.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// `None`: the agent was stopped meanwhile.
    async fn wait(&self, wait: Duration) -> Option<()> {
        let until = Timestamp::now().checked_add(wait).ok();
        self.board
            .change(|status| status.connection.next_attempt_at = until);
        let pause = tokio::time::sleep(wait);
        self.stop.run_until_cancelled(pause).await
    }

    /// Decides what follows a failed call: how long to wait, and with which state, and so
    /// which activity, to return. The wire contract maps each refusal to an [`Action`].
    ///
    /// The wait: a replaced stream waits a fixed time, because two copies of one agent
    /// would otherwise replace each other in a loop. A refused token waits long without a
    /// hint, because only a person can change it. All other failures use the backoff,
    /// including those that change the state: a service that refuses every JWT it issues
    /// must not be called in a loop either.
    ///
    /// The state: without its JWT the agent registers next. A deleted agent discards its
    /// whole state, so that it registers with the token again. Only failures that another
    /// instance may not have move on to the next address, and to another IP address of a
    /// name; after a refusal of the agent itself, every instance would answer the same.
    fn after_failure(&mut self, error: &CallError) -> Next {
        if self.falls_back(error) {
            return Next::Continue;
        }
        let (action, reason) = match error {
            CallError::Failed(failure) => (failure.action, failure.reason.as_str()),
            _ => (Action::Reconnect, ""),
        };
        let hint = error.retry_after();
        let wait = match action {
            Action::YieldToReplacement => self.timing.replaced,
            Action::NewToken => hint.unwrap_or(self.timing.token_refused),
            _ => self.backoff_wait(hint),
        };
        tracing::warn!(
            reason, %error, address = self.address(), retry_in = ?rounded(wait),
            "{}", log_line(action)
        );
        self.disconnected(error.to_string());
        match action {
            Action::RegisterAgain | Action::WaitForPerson => self.forget_credential(),
            Action::RegisterAsNew => self.forget_agent(),
            Action::TakeSuccessor => self.in_use(),
            Action::Reconnect | Action::RetryLater => {
                self.leave_address();
                self.missed();
            }
            Action::YieldToReplacement | Action::NewToken | Action::Defect => {}
        }
        Next::Wait(wait)
    }

    /// The key seems to be live on another machine. The service may be wrong for a while: a
    /// machine that was restored or renamed itself meets the session of its former life until
    /// every grace of the service is over. So only refusals that outlast them show a clone.
    fn in_use(&mut self) {
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.timing.in_use {
            self.is_clone = true;
        }
    }

    fn leave_address(&mut self) {
        self.caller.leave_peer();
        self.addresses.advance();
    }

    fn backoff_wait(&mut self, hint: Option<Duration>) -> Duration {
        self.backoff.next(self.timing.backoff, hint, rand::random())
    }

    /// A call that lived long enough shows that the service works: the next failure
    /// counts as the first. Resetting on every success would defeat the backoff against
    /// a service that accepts streams and drops them at once.
    fn reset_backoff_if_settled(&mut self, opened: Instant) {
        if opened.elapsed() >= self.timing.settled {
            self.backoff.reset();
        }
    }
}

/// The status before the first call.
fn at_start(caller: &Caller, state: &State, data_dir: &Path) -> Status {
    Status {
        version: version().into(),
        data_dir: data_dir.to_str().map(Into::into),
        fingerprint: caller.identity().fingerprint(),
        agent_id: state.agent_id.clone(),
        enrolment: match state.credential() {
            Some(_) => Enrolment::Active,
            None => Enrolment::Unknown,
        },
        jwt_expires_at: state.jwt_expires_at(),
        rare: Rare {
            cell: state.cell.as_ref().map(|cell| cell.name.clone()),
            ..Rare::default()
        },
        ..Status::default()
    }
}

/// The site's own key pair, or the agent's key, created at the first start.
fn identity(dir: &DataDir, config: &Config) -> Result<Identity, AgentError> {
    if let Some(pair) = &config.client_pair {
        return Ok(Identity::from_files(pair)?);
    }
    let name = dir.path().join(IDENTITY).display().to_string();
    if let Some(text) = dir.read(IDENTITY)? {
        return Ok(Identity::from_pem(&text, &name)?);
    }
    // The agent stopped between the two renames of `change_key`: complete the second.
    if let Some(text) = dir.read(SUCCESSOR)? {
        let identity = Identity::from_pem(&text, &name)?;
        dir.rename(SUCCESSOR, IDENTITY)?;
        return Ok(identity);
    }
    let (identity, text) = Identity::generate_with_pem(Timestamp::now(), None)?;
    dir.write(IDENTITY, &text)?;
    Ok(identity)
}

fn log_line(action: Action) -> &'static str {
    match action {
        Action::RegisterAgain => "the service refused the JWT: registering again over the same key",
        Action::WaitForPerson => "this agent is no longer admitted",
        Action::RegisterAsNew => "this agent was deleted: registering as a new one",
        Action::NewToken => {
            "the enrolment token is not valid: an administrator creates a new one with `svc-ingest token create`"
        }
        Action::TakeSuccessor => {
            "this key is live on another machine, or was retired: if that lasts, this disk is a clone or an old copy, and the agent creates a new key"
        }
        Action::YieldToReplacement => "another stream of this agent took over",
        Action::RetryLater => "the service asks to retry later",
        Action::Defect => "the service did not accept a message of this agent",
        Action::Reconnect => "no connection to the service",
    }
}

/// To milliseconds, for the log.
fn rounded(wait: Duration) -> Duration {
    Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}
