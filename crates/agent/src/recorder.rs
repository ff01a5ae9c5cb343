//! The recorder takes samples into the spool, and hands them out as reports.
//!
//! It samples whether or not the agent is connected. The session asks for the report that
//! follows a number, and passes acknowledgements on. One lock protects the spool, the
//! sampler and the service's time together; it is held for a small read or write of a file,
//! never across an await.
//!
//! # Sample times
//!
//! Samples carry the service's time ([`ServiceTime`]), but before the first Welcome of a boot
//! the agent knows only its own wall clock, which may be wrong by years. Those samples are
//! stored with the wrong time. The first Welcome shows the difference, and a `Correction`
//! shifts their times when they are read. Their frames are not rewritten: a frame on disk
//! never changes.
//!
//! The numbers in a correction need care, because the same Welcome may renumber samples
//! (`spool/resume.rs`). Renumbering moves samples to the end in their order, so the samples
//! of this run are still the last ones; the correction counts back from the end.

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
    /// Wakes the session after a sample. It has one waiter, and stores one wake-up, so the
    /// session misses none.
    sample_taken: Notify,
}

#[derive(Debug)]
struct Inner {
    spool: Spool,
    sampler: Sampler,
    time: ServiceTime,
    /// Until the first Welcome: samples from this number on carry the time of the wall
    /// clock.
    uncorrected_from: Option<u64>,
    correction: Option<Correction>,
    failing: bool,
}

/// The samples that were taken by a wrong clock, and the difference.
#[derive(Clone, Copy, Debug)]
struct Correction {
    first: u64,
    last: u64,
    millis: i64,
}

impl Recorder {
    /// `known` is the service's time from an earlier run within this boot.
    pub fn new(spool: Spool, clock: Clock, known: Option<Anchor>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                uncorrected_from: known.is_none().then_some(spool.next_seq()),
                spool,
                sampler: Sampler::new(),
                time: ServiceTime::new(clock.clone(), known),
                correction: None,
                failing: false,
            }),
            clock,
            sample_taken: Notify::new(),
        }
    }

    /// Takes samples while `sampling` is on, until its sender is dropped.
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

    /// Takes one sample. A sample that cannot be stored is declared lost.
    pub fn take(&self) {
        self.inner().take();
        self.sample_taken.notify_one();
    }

    /// Applies the watermark and the time of a Welcome.
    pub fn welcome(
        &self,
        acked_seq: u64,
        server_time: Option<SystemTime>,
    ) -> Result<(), SpoolError> {
        let mut inner = self.inner();
        let uncorrected = inner.uncorrected_from.take();
        let uncorrected = uncorrected.map(|first| inner.spool.next_seq().saturating_sub(first));
        inner.spool.resume(acked_seq)?;
        let off = server_time.map(|time| inner.time.set(time));
        if let (Some(count), Some(millis)) = (uncorrected, off) {
            // `resume` may have changed the numbers, but not the order.
            let next = inner.spool.next_seq();
            inner.correction = Some(Correction {
                first: next.saturating_sub(count),
                last: next.saturating_sub(1),
                millis,
            });
        }
        Ok(())
    }

    /// The report that follows `sent`; `None`: there is nothing to send.
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

    /// Numbers belong to a key, so a new key has a new spool.
    pub fn replace_spool(&self, spool: Spool) {
        let mut inner = self.inner();
        inner.uncorrected_from = inner.uncorrected_from.map(|_| spool.next_seq());
        inner.correction = None;
        inner.spool = spool;
    }

    pub fn usage(&self) -> Usage {
        self.inner().spool.usage()
    }

    /// The number of the next sample, and the watermark.
    pub fn numbers(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.spool.next_seq(), inner.spool.acked_seq())
    }

    /// The service's time, to be saved for a restart.
    pub fn anchor(&self) -> Anchor {
        self.inner().time.anchor()
    }

    /// Waits for the next sample. Cancel-safe.
    pub async fn sample_taken(&self) {
        self.sample_taken.notified().await;
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
                tracing::info!("samples are stored again");
            }
            Ok(_) => {}
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "a sample could not be stored: it is declared lost");
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

/// The time of the next sample. Samples that a suspended machine missed are not made up for.
fn next_due(due: Duration, now: Duration, interval: Duration) -> Duration {
    let next = due + interval;
    if next > now { next } else { now + interval }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn samples_keep_their_rhythm_and_missed_ones_are_skipped() {
        let second = Duration::from_secs(1);
        assert_eq!(next_due(MINUTE, MINUTE + second, MINUTE), 2 * MINUTE);
        assert_eq!(next_due(MINUTE, 10 * MINUTE, MINUTE), 11 * MINUTE);
    }

    #[test]
    fn the_times_of_samples_before_the_first_welcome_are_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        clock.move_wall(-86_400_000);
        let spool = Spool::open(folder.path(), Default::default()).unwrap();
        let recorder = Recorder::new(spool, clock, None);
        let before = SystemTime::now();
        recorder.take();
        recorder.take();
        // The service has five samples of a former life: both samples get new numbers.
        recorder.welcome(5, Some(SystemTime::now())).unwrap();
        recorder.take();
        let report = recorder.report(5).unwrap().unwrap();
        let numbers: Vec<u64> = report.samples.iter().map(|sample| sample.seq).collect();
        assert_eq!(numbers, [6, 7, 8]);
        for sample in report.samples {
            let at = SystemTime::try_from(sample.sampled_at.unwrap()).unwrap();
            assert!(at + MINUTE > before && at < before + MINUTE, "{at:?}");
        }
        assert!(recorder.report(8).unwrap().is_none());
    }
}
