//! What was measured, from the moment it was taken until the service has it: the
//! spool, the sampler and the service's time, behind one lock.
//!
//! Samples are taken whether or not anybody is connected. The stream asks for what
//! comes after a number, and says what was acknowledged. The lock is held for a
//! small read or write of a file, never across a wait.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use svc_proto::v1::Report;
use tokio::sync::{Notify, watch};

use crate::{
    clock::{Anchor, Clock, ServiceTime, shifted},
    spool::{Spool, SpoolError, Usage},
    vitals::Sampler,
    wire::{MAX_REPORT_BYTES, MAX_REPORT_SAMPLES},
};

/// Whether samples are taken, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub on: bool,
    pub interval: Duration,
}

#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    inner: Mutex<Inner>,
    /// Somebody waits for new samples; one waiter, and no news is lost.
    grown: Notify,
}

#[derive(Debug)]
struct Inner {
    spool: Spool,
    sampler: Sampler,
    time: ServiceTime,
    /// Numbers of this run whose times are still by this machine's own clock: from
    /// this one on, until the first Welcome.
    unsynced_from: Option<u64>,
    correction: Option<Correction>,
    failing: bool,
}

/// Times that were taken by a clock that was wrong.
#[derive(Clone, Copy, Debug)]
struct Correction {
    first: u64,
    last: u64,
    millis: i64,
}

impl Recorder {
    /// With what the service said last of the time, if that was in this boot.
    pub fn new(spool: Spool, clock: Clock, known: Option<Anchor>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                unsynced_from: known.is_none().then_some(spool.next_seq()),
                spool,
                sampler: Sampler::new(),
                time: ServiceTime::new(clock.clone(), known),
                correction: None,
                failing: false,
            }),
            clock,
            grown: Notify::new(),
        }
    }

    /// Takes samples, as long as it is asked to.
    pub async fn run(&self, mut sampling: watch::Receiver<Sampling>) {
        let mut due = self.clock.steady();
        loop {
            let Sampling { on, interval } = *sampling.borrow_and_update();
            let now = self.clock.steady();
            due = due.min(now + interval);
            tokio::select! {
                () = self.clock.sleep(due.saturating_sub(now)), if on => {
                    self.take();
                    due = next_due(due, self.clock.steady(), interval);
                }
                changed = sampling.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes one sample. One that cannot be kept is declared lost.
    pub fn take(&self) {
        self.inner().take();
        self.grown.notify_one();
    }

    /// The service has said where this agent stands and what time it is.
    pub fn welcome(
        &self,
        acked_seq: u64,
        server_time: Option<SystemTime>,
    ) -> Result<(), SpoolError> {
        let mut inner = self.inner();
        let unsure = inner.unsynced_from.take();
        let unsure = unsure.map(|first| inner.spool.next_seq().saturating_sub(first));
        inner.spool.resume(acked_seq)?;
        let off = server_time.map(|time| inner.time.set(time));
        if let (Some(count), Some(millis)) = (unsure, off) {
            // Numbers may have changed, but what was taken last still stands last.
            let next = inner.spool.next_seq();
            inner.correction = Some(Correction {
                first: next.saturating_sub(count),
                last: next.saturating_sub(1),
                millis,
            });
        }
        Ok(())
    }

    /// What comes after `sent`, as much as one report carries; `None`: nothing does.
    pub fn report(&self, sent: u64) -> Result<Option<Report>, SpoolError> {
        let inner = self.inner();
        if inner.spool.next_seq() <= sent.saturating_add(1) {
            return Ok(None);
        }
        let mut report = inner
            .spool
            .read(sent, MAX_REPORT_SAMPLES, MAX_REPORT_BYTES)?;
        if let Some(correction) = inner.correction {
            correction.apply(&mut report);
        }
        Ok(Some(report).filter(|report| !report.samples.is_empty() || !report.gaps.is_empty()))
    }

    pub fn acked(&self, up_to: u64) {
        self.inner().spool.acked(up_to);
    }

    /// The numbers belong to a key: another key has another spool.
    pub fn replace_spool(&self, spool: Spool) {
        let mut inner = self.inner();
        inner.unsynced_from = inner.unsynced_from.map(|_| spool.next_seq());
        inner.correction = None;
        inner.spool = spool;
    }

    pub fn usage(&self) -> Usage {
        self.inner().spool.usage()
    }

    /// The number that the next sample will bear, and the last one that is safe.
    pub fn numbers(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.spool.next_seq(), inner.spool.acked_seq())
    }

    /// What is known of the service's time, to be remembered over a restart.
    pub fn anchor(&self) -> Anchor {
        self.inner().time.anchor()
    }

    /// Waits until something new was taken.
    pub async fn sample_taken(&self) {
        self.grown.notified().await;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take(&mut self) {
        let now = self.time.now();
        self.spool.expire(now);
        let vitals = self.sampler.sample();
        match self.spool.append(now, &vitals) {
            Ok(_) if self.failing => {
                self.failing = false;
                tracing::info!("samples are kept again");
            }
            Ok(_) => {}
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "a sample could not be kept: it is declared lost");
            }
            Err(_) => {}
        }
    }
}

impl Correction {
    fn apply(&self, report: &mut Report) {
        let wrong = report
            .samples
            .iter_mut()
            .filter(|sample| (self.first..=self.last).contains(&sample.seq));
        for sample in wrong {
            let at = sample
                .sampled_at
                .and_then(|at| SystemTime::try_from(at).ok());
            sample.sampled_at = at.map(|at| shifted(at, self.millis).into());
        }
    }
}

/// The next moment of the rhythm; a machine that was suspended misses some.
fn next_due(due: Duration, now: Duration, interval: Duration) -> Duration {
    let next = due + interval;
    if next > now { next } else { now + interval }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn the_rhythm_is_kept_and_what_was_missed_is_not_made_up_for() {
        let second = Duration::from_secs(1);
        assert_eq!(next_due(MINUTE, MINUTE + second, MINUTE), 2 * MINUTE);
        assert_eq!(next_due(MINUTE, 10 * MINUTE, MINUTE), 11 * MINUTE);
    }

    #[test]
    fn samples_from_before_the_first_welcome_are_set_right() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        clock.move_wall(-86_400_000);
        let spool = Spool::open(folder.path(), Default::default()).unwrap();
        let record = Recorder::new(spool, clock, None);
        let before = SystemTime::now();
        record.take();
        record.take();
        // The service has had five of another life: both get other numbers.
        record.welcome(5, Some(SystemTime::now())).unwrap();
        record.take();
        let report = record.report(5).unwrap().unwrap();
        let numbers: Vec<u64> = report.samples.iter().map(|sample| sample.seq).collect();
        assert_eq!(numbers, [6, 7, 8]);
        for sample in report.samples {
            let at = SystemTime::try_from(sample.sampled_at.unwrap()).unwrap();
            assert!(at + MINUTE > before && at < before + MINUTE, "{at:?}");
        }
        assert!(record.report(8).unwrap().is_none());
    }
}
