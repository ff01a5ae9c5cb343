//! The running agent, as the protocol tells its story: it registers until it is
//! admitted, holds a heartbeat stream while it is, and comes back when it is lost.
//! A copy of another machine's disk takes a key of its own first.
//!
//! Invariant: every way back to the service goes through [`Agent::wait`], which the
//! service's hint or a growing backoff decides. No refusal makes a busy loop.

mod enrol;
mod notes;
mod session;
mod successor;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    caller::{CallError, Caller, Facts},
    clock::Clock,
    config::Config,
    data_dir::{DataDir, DataDirError, IDENTITY, SUCCESSOR, short},
    identity::{Identity, IdentityError},
    record::{Record, Sampling},
    release::{Notice, VERSION},
    spool::{Spool, SpoolError},
    state::State,
    status::Board,
    timing::Timing,
    wire::{Addresses, Backoff, Reason},
};

/// What an agent finds around itself, and a test may give it.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub clock: Clock,
    pub facts: Facts,
    pub timing: Timing,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            facts: Facts::OfThisMachine,
            timing: Timing::default(),
        }
    }
}

/// Why an agent cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

/// An agent on its data folder, ready to run.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    timing: Timing,
    dir: Arc<DataDir>,
    state: State,
    caller: Caller,
    boot_id: String,
    record: Arc<Record>,
    board: Arc<Board>,
    sampling: watch::Sender<Sampling>,
    addresses: Addresses,
    backoff: Backoff,
    /// The service has said that this is a copy.
    is_copy: bool,
    noticed: Option<Notice>,
    stop: CancellationToken,
}

/// How a step on the way ended.
enum Step {
    /// On to the next.
    Go,
    /// Not before so much time has passed.
    Wait(Duration),
    Stopped,
}

impl Agent {
    /// Opens the data folder, and makes a key where there is none.
    pub fn open(config: Config, surroundings: Surroundings) -> Result<Self, AgentError> {
        let Surroundings {
            clock,
            facts,
            timing,
        } = surroundings;
        let dir = Arc::new(DataDir::open(&config.data_dir)?);
        let identity = identity(&dir, &config)?;
        let state = State::load(&dir)?;
        let spool = Spool::open(&dir.spool(&identity.fingerprint()), config.spool)?;
        let (sampling, _) = watch::channel(Sampling {
            on: state.credential().is_some(),
            interval: state.interval().unwrap_or(timing.interval),
        });
        let is_copy = dir.read(SUCCESSOR)?.is_some();
        let caller = Caller::new(&config, identity, facts, clock.clone(), timing.patience);
        let boot_id = caller.facts().boot_id;
        let record = Record::new(spool, clock, state.time(&boot_id));
        Ok(Self {
            board: Arc::new(Board::new(notes::at_start(&caller, &state))),
            record: Arc::new(record),
            caller,
            boot_id,
            addresses: Addresses::new(config.addresses.clone()),
            backoff: Backoff::new(timing.backoff_first, timing.backoff_most),
            stop: CancellationToken::new(),
            noticed: None,
            config,
            timing,
            dir,
            state,
            sampling,
            is_copy,
        })
    }

    /// What was measured here, for who wants to look.
    pub fn record(&self) -> Arc<Record> {
        self.record.clone()
    }

    /// Runs until asked to stop, and says goodbye then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), AgentError> {
        self.stop = stop;
        let (dir, record, board) = (self.dir.clone(), self.record.clone(), self.board.clone());
        let fingerprint = self.caller.identity().fingerprint();
        tracing::info!(
            version = VERSION,
            key = short(&fingerprint),
            fingerprint,
            "the agent starts"
        );
        let sampling = record.run(self.sampling.subscribe());
        let status = board.run(&dir, &record, self.timing.status);
        let ended = tokio::select! {
            ended = self.live() => ended,
            () = sampling => Ok(()),
            () = status => Ok(()),
        };
        self.board
            .change(|status| status.connection = Default::default());
        self.board.write(&self.dir, &self.record);
        tracing::info!("the agent stops");
        ended
    }

    async fn live(&mut self) -> Result<(), AgentError> {
        loop {
            let step = match self.state.credential() {
                _ if self.is_copy => self.take_successor().await?,
                None => self.enrol().await,
                Some(credential) => self.heartbeat(credential).await,
            };
            match step {
                Step::Go => {}
                Step::Stopped => return Ok(()),
                Step::Wait(wait) => {
                    if self.wait(wait).await.is_none() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// `None`: asked to stop meanwhile.
    async fn wait(&self, wait: Duration) -> Option<()> {
        let until = Timestamp::now().checked_add(wait).ok();
        self.board
            .change(|status| status.connection.next_attempt_at = until);
        let pause = tokio::time::sleep(wait);
        self.stop.run_until_cancelled(pause).await
    }

    /// What a failed call means for what comes next.
    fn after(&mut self, error: &CallError) -> Step {
        let (reason, name) = match error {
            CallError::Refused(refusal) => (refusal.reason, refusal.name.as_str()),
            _ => (Reason::Lost, ""),
        };
        let hint = error.retry_after();
        let wait = match reason {
            Reason::Replaced => self.timing.replaced,
            Reason::Token => hint.unwrap_or(self.timing.token_refused),
            _ => self.backoff.next(hint),
        };
        tracing::warn!(
            reason = name, %error, address = self.address(), retry_in = ?rounded(wait),
            "{}", what(reason)
        );
        self.disconnected(error.to_string());
        match reason {
            Reason::Jwt | Reason::NotActive => self.forget_credential(),
            Reason::Deleted => self.forget_agent(),
            Reason::IdentityInUse => self.is_copy = true,
            Reason::Lost | Reason::Later => self.addresses.advance(),
            Reason::Replaced | Reason::Token | Reason::Misunderstood => {}
        }
        Step::Wait(wait)
    }

    /// The time that a stream has lived decides whether its end is one of many.
    fn lived_since(&mut self, opened: Instant) {
        if opened.elapsed() >= self.timing.settled {
            self.backoff.reset();
        }
    }
}

/// Whose key it is: the site's, or the agent's own, made at its first start.
fn identity(dir: &DataDir, config: &Config) -> Result<Identity, AgentError> {
    if let Some(pair) = &config.client_pair {
        return Ok(Identity::from_files(pair)?);
    }
    let name = dir.path().join(IDENTITY).display().to_string();
    if let Some(text) = dir.read(IDENTITY)? {
        return Ok(Identity::from_pem(&text, &name)?);
    }
    // A copy that was interrupted while it changed its key.
    if let Some(text) = dir.read(SUCCESSOR)? {
        let identity = Identity::from_pem(&text, &name)?;
        dir.rename(SUCCESSOR, IDENTITY)?;
        return Ok(identity);
    }
    let (identity, text) = Identity::generate_with_pem()?;
    dir.write(IDENTITY, &text)?;
    Ok(identity)
}

/// One constant sentence for each.
fn what(reason: Reason) -> &'static str {
    match reason {
        Reason::Jwt => "the JWT is not taken: registering again over the same key",
        Reason::NotActive => "this agent is not admitted any more",
        Reason::Deleted => "this agent was deleted: registering as a new one",
        Reason::Token => {
            "the enrolment token admits nobody: an administrator makes a new one with `svc-ingest token create`"
        }
        Reason::IdentityInUse => {
            "this key is live on another machine: this disk is a copy, and takes a key of its own"
        }
        Reason::Replaced => "another stream of this agent took over",
        Reason::Later => "the service asks to come back later",
        Reason::Misunderstood => "the service did not understand this agent",
        Reason::Lost => "no connection to the service",
    }
}

/// As a person reads it.
fn rounded(wait: Duration) -> Duration {
    Duration::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}
