//! What the network thread and the disk thread share: the numbers and samples in memory, and
//! the jobs for the disk.
//!
//! The lock is held for changes in memory only, never while a thread waits for the disk.
//! Nothing can pile up: samples are in the bounded window, and of each other kind of job
//! there is at most one.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use svc_proto::v1::Report;
use tokio::sync::{Notify, oneshot};

use super::{
    numbers::{DiskState, Numbers},
    window::WindowSample,
};
use crate::{
    spool::{LossReason, Spool, SpoolError, Usage},
    sync::locked,
};

/// A job that takes longer counts as a disk that does not work.
pub(super) const STALL: Duration = Duration::from_secs(5);
/// The time without progress after which a stopping agent leaves the disk alone.
const LAST_WAIT: Duration = Duration::from_secs(3);

/// What both threads see.
#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// Wakes the disk thread, and who waits for its end.
    pub work: Condvar,
    /// Wakes the session: there may be something to send. It has one waiter, and stores one
    /// wake-up, so the session misses none.
    pub changed: Notify,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub numbers: Numbers,
    failure: Option<Failure>,
    pub busy_since: Option<Instant>,
    /// The last write failed: wait for the next sample before another attempt.
    pub is_resting: bool,
    pub usage: Usage,
    read: Option<Read>,
    resume: Option<Resume>,
    replacement: Option<Box<Spool>>,
    pub files: BTreeMap<&'static str, FileJob>,
    expire: Option<Option<SystemTime>>,
    /// A new limit of the spool.
    pub limit: Option<u64>,
    pub jobs_done: u64,
    pub must_end: bool,
    pub has_ended: bool,
}

/// Why the disk did not take the last sample.
#[derive(Debug)]
struct Failure {
    text: String,
    reason: LossReason,
}

/// What memory knows about a report.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would cost an allocation per report"
)]
#[derive(Debug)]
pub(super) enum Held {
    /// There is nothing to send.
    Nothing,
    Report(Report),
    /// The samples are only on disk.
    OnDisk,
}

type Answer<T> = oneshot::Sender<Result<T, SpoolError>>;

#[derive(Debug)]
pub(super) struct Read {
    pub after: u64,
    pub answer: Answer<Report>,
}

#[derive(Debug)]
pub(super) struct Resume {
    pub acked_seq: u64,
    pub answer: Answer<()>,
}

/// A file of the data folder to replace.
#[derive(Debug)]
pub(super) struct FileJob {
    pub text: String,
    /// It must survive a power failure.
    pub is_durable: bool,
}

/// One step of the disk thread.
pub(super) enum Job {
    Resume(Resume),
    Replace(Box<Spool>),
    Store(WindowSample),
    Read(Read),
    Acked(u64),
    Expire(Option<SystemTime>),
    Limit(u64),
    File(&'static str, FileJob),
}

impl Shared {
    pub fn new(spool: &Spool) -> Self {
        Self {
            inner: Mutex::new(Inner {
                numbers: Numbers::of(spool),
                failure: None,
                busy_since: None,
                is_resting: false,
                usage: spool.usage(),
                read: None,
                resume: None,
                replacement: None,
                files: BTreeMap::new(),
                expire: None,
                limit: None,
                jobs_done: 0,
                must_end: false,
                has_ended: false,
            }),
            work: Condvar::new(),
            changed: Notify::new(),
        }
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Changes the state and wakes the disk thread.
    pub fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let changed = change(&mut self.inner());
        self.work.notify_all();
        changed
    }

    /// What memory knows about the report that follows `sent`.
    pub fn held(&self, sent: u64) -> Held {
        let mut inner = self.inner();
        let disk = inner.state();
        let numbers = &mut inner.numbers;
        let last = numbers.sendable(disk);
        let after = sent.max(numbers.acked);
        match numbers.window.answers_for(after + 1) {
            _ if last <= after => Held::Nothing,
            true => Held::Report(numbers.window.report(after, last)),
            false => Held::OnDisk,
        }
    }

    /// A session gets the numbers up to this one.
    pub fn handed(&self, last: u64) {
        let mut inner = self.inner();
        inner.numbers.handed = inner.numbers.handed.max(last);
    }

    /// Asks for the samples that follow a number. A later request replaces an earlier one.
    pub fn read(&self, after: u64) -> oneshot::Receiver<Result<Report, SpoolError>> {
        let (answer, answered) = oneshot::channel();
        self.change(|inner| inner.read = Some(Read { after, answer }));
        answered
    }

    pub fn resume(&self, acked_seq: u64) -> oneshot::Receiver<Result<(), SpoolError>> {
        let (answer, answered) = oneshot::channel();
        self.change(|inner| inner.resume = Some(Resume { acked_seq, answer }));
        answered
    }

    pub fn replace(&self, spool: Spool) {
        self.change(|inner| {
            inner.numbers = Numbers::of(&spool);
            inner.replacement = Some(Box::new(spool));
            (inner.read, inner.resume) = (None, None);
        });
    }

    /// Waits until no job is left, or the disk makes no progress.
    pub fn finish(&self, must_end: bool) {
        let mut inner = self.inner();
        if must_end {
            (inner.must_end, inner.is_resting) = (true, false); // A last attempt.
        }
        self.work.notify_all();
        let is_done = |inner: &Inner| inner.has_ended || !must_end && inner.is_idle();
        loop {
            let before = inner.jobs_done;
            let waited = self.work.wait_timeout_while(inner, LAST_WAIT, |inner| {
                !is_done(inner) && inner.jobs_done == before
            });
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            if timeout.timed_out() || is_done(&inner) {
                return;
            }
        }
    }
}

impl Inner {
    /// Why samples are not stored; `None` while they are.
    pub fn problem(&self) -> Option<String> {
        let waits = self.numbers.window.unstored_count();
        let stalled = self.busy_since.map(|since| since.elapsed());
        let what = match (&self.failure, stalled.filter(|stalled| *stalled >= STALL)) {
            (_, Some(stalled)) => {
                format!("the disk has not answered for {} s", stalled.as_secs())
            }
            (Some(failure), None) => failure.text.clone(),
            (None, None) => return None,
        };
        Some(format!("{what} ({waits} samples are in memory only)"))
    }

    pub fn state(&self) -> DiskState {
        let is_stalled = |since: Instant| since.elapsed() >= STALL;
        match &self.failure {
            _ if self.busy_since.is_some_and(is_stalled) => DiskState::Fails,
            None => DiskState::Works,
            Some(_) if self.is_resting => DiskState::Fails,
            Some(_) => DiskState::Undecided,
        }
    }

    pub fn expire(&mut self, now: Option<SystemTime>) {
        self.expire = Some(now);
    }

    /// The reason of samples that the window gives up.
    pub fn loss_reason(&self) -> LossReason {
        let failure = self.failure.as_ref();
        failure.map_or(LossReason::NotStored, |failure| failure.reason)
    }

    fn is_idle(&self) -> bool {
        self.busy_since.is_none() && !self.has_job()
    }

    fn has_job(&self) -> bool {
        let must_store = self.numbers.window.unstored_count() > 0 && !self.is_resting;
        let has_request =
            self.read.is_some() || self.resume.is_some() || self.replacement.is_some();
        let has_upkeep = !self.files.is_empty() || self.expire.is_some() || self.limit.is_some();
        must_store || has_request || has_upkeep
    }

    pub fn next_job(&mut self, acked: u64) -> Option<Job> {
        if let Some(spool) = self.replacement.take() {
            return Some(Job::Replace(spool));
        }
        if let Some(resume) = self.resume.take() {
            return Some(Job::Resume(resume));
        }
        if let Some(read) = self.read.take() {
            return Some(Job::Read(read));
        }
        if let Some(now) = self.expire.take() {
            return Some(Job::Expire(now));
        }
        if let Some(bytes) = self.limit.take() {
            return Some(Job::Limit(bytes));
        }
        if self.numbers.acked > acked && !self.is_resting {
            return Some(Job::Acked(self.numbers.acked));
        }
        if let Some(entry) = self.numbers.window.unstored()
            && !self.is_resting
        {
            let entry = entry.clone();
            // Here and not when the job begins: a thread that is paused in between counts as stalled.
            self.numbers.attempted = self.numbers.attempted.max(entry.seq);
            return Some(Job::Store(entry));
        }
        let (name, file) = self.files.pop_first()?;
        Some(Job::File(name, file))
    }

    /// Logs the first failure and the end of it.
    pub fn note(&mut self, error: Option<&SpoolError>) {
        match (&self.failure, error) {
            (None, Some(error)) => {
                tracing::error!(%error, "samples cannot be stored: they are kept in memory");
            }
            (Some(_), None) => tracing::info!("samples are stored again"),
            _ => {}
        }
        self.failure = error.map(|error| Failure {
            text: error.to_string(),
            reason: error.loss_reason(),
        });
    }
}
