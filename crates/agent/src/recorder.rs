//! The recorder takes samples, and hands them out as reports.
//!
//! It samples whether or not the agent is connected. Samples are in memory (`window`), get
//! their numbers there (`numbers`), and are stored by a thread of their own (`disk`). The
//! session asks for the report that follows a number, and passes acknowledgements on. No
//! call from the network thread waits for the disk: full, read-only and stalled disks delay
//! neither samples nor reports. Nor does it measure, because file systems may be slow: a
//! thread of its own does, and not the disk's, because a stalled disk must not stop samples.
//!
//! # Sample times
//!
//! Samples carry the service's time ([`ServiceTime`]). Before the first Welcome of a boot the
//! agent does not know it, and samples carry a moment of the steady clock instead
//! (`Stamp`). Reports exist only after a Welcome, so they have times alone: a moment of
//! this boot is dated by the steady clock, a moment of another boot becomes a gap.

mod dates;
mod disk;
#[cfg(test)]
mod model;
mod numbers;
mod shared;
mod window;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use prost::Message;
use svc_proto::v1::{Report, Vitals};
use tokio::{
    sync::{oneshot, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until, timeout},
};

use self::{
    dates::dated,
    disk::Disk,
    numbers::DiskState,
    shared::{FileJob, Held, STALL, Shared},
};
use crate::{
    clock::{Anchor, Clock, ServiceTime},
    data_dir::DataDir,
    machine::clean,
    spool::{Spool, SpoolError, Usage},
    stamp::{Boot, Stamp},
    sync::locked,
    vitals::{Filter, Sampler},
};

/// The first sample waits until there is a processor load to measure.
const FIRST: Duration = Duration::from_secs(1);
/// How long a session waits for samples that are only on disk.
const READ_WAIT: Duration = Duration::from_secs(2);
/// Renumbering may copy the whole spool.
const RESUME_WAIT: Duration = Duration::from_secs(60);

/// Whether samples are taken, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub on: bool,
    pub interval: Duration,
}

#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    boot: Boot,
    time: Mutex<ServiceTime>,
    sampler: Arc<Mutex<Sampler>>,
    /// Apart from the sampler, whose lock is held while it measures.
    filter: Mutex<Arc<Filter>>,
    shared: Arc<Shared>,
}

impl Recorder {
    /// `known` is the service's time from an earlier run within this boot.
    pub fn start(
        spool: Spool,
        dir: Arc<DataDir>,
        clock: Clock,
        boot_id: &str,
        known: Option<Anchor>,
    ) -> Result<Self, SpoolError> {
        let shared = Arc::new(Shared::new(&spool));
        let path = dir.path().to_owned();
        let disk = Disk::new(shared.clone(), spool, dir);
        disk.start()
            .map_err(|source| SpoolError::NotOpened { path, source })?;
        Ok(Self {
            boot: Boot::new(boot_id),
            time: Mutex::new(ServiceTime::new(clock.clone(), known)),
            sampler: Arc::new(Mutex::new(Sampler::default())),
            filter: Mutex::default(),
            clock,
            shared,
        })
    }

    /// Takes samples while `sampling` is on, until its sender is dropped.
    pub async fn run(&self, mut sampling: watch::Receiver<Sampling>) {
        let mut due = self.clock.steady() + FIRST;
        // A disk that does not answer wakes nobody, so the session is woken after a while.
        let mut wake_at: Option<Instant> = None;
        loop {
            let Sampling { on, interval } = *sampling.borrow_and_update();
            let now = self.clock.steady();
            due = due.min(now + interval);
            tokio::select! {
                () = self.clock.sleep(due.saturating_sub(now)), if on => {
                    self.take().await;
                    wake_at.get_or_insert_with(|| Instant::now() + STALL);
                    due = next_due(due, self.clock.steady(), interval);
                }
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                    wake_at = None;
                    self.shared.changed.notify_one();
                }
                changed = sampling.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes one sample. It is measured on a thread of its own, because the caller's is the
    /// network's, and a file system may take a second to answer.
    pub async fn take(&self) {
        let (sampler, filter) = (self.sampler.clone(), locked(&self.filter).clone());
        let measured = spawn_blocking(move || {
            let mut sampler = locked(&sampler);
            sampler.leave_out(filter);
            sampler.sample()
        })
        .await;
        if let Ok(vitals) = measured {
            self.record(vitals);
        }
    }

    /// A sample that neither the disk nor the memory can hold is declared lost.
    fn record(&self, mut vitals: Vitals) {
        vitals.spool_problem = clean(&self.problem().unwrap_or_default());
        let now = locked(&self.time).confirmed_now();
        let at = match now {
            Some(now) => Stamp::time(now),
            None => Stamp::moment(self.boot, self.clock.steady()),
        };
        self.shared.change(|inner| {
            let reason = inner.loss_reason();
            inner.numbers.take(at, vitals.encode_to_vec(), reason);
            inner.is_resting = false;
            inner.expire(now);
        });
        if self.shared.inner().state() == DiskState::Fails {
            self.shared.changed.notify_one();
        }
    }

    /// Applies the watermark and the time of a Welcome.
    pub async fn welcome(
        &self,
        acked_seq: u64,
        server_time: Option<SystemTime>,
    ) -> Result<(), SpoolError> {
        if let Some(server_time) = server_time {
            locked(&self.time).set(server_time);
        }
        let only_acknowledges = self
            .shared
            .change(|inner| inner.numbers.welcomed(acked_seq));
        match only_acknowledges {
            true => Ok(()),
            false => answered(self.shared.resume(acked_seq), RESUME_WAIT).await,
        }
    }

    /// The report that follows `sent`; `None`: there is nothing to send. `NoAnswer`: it must
    /// come from the disk, which does not answer.
    pub async fn report(&self, sent: u64) -> Result<Option<Report>, SpoolError> {
        let report = match self.shared.held(sent) {
            Held::Nothing => return Ok(None),
            Held::Report(report) => report,
            Held::OnDisk => answered(self.shared.read(sent), READ_WAIT).await?,
        };
        let Some(last) = last_number(&report) else {
            return Ok(None);
        };
        self.shared.handed(last);
        Ok(Some(dated(report, self.boot, self.anchor())))
    }

    pub fn acked(&self, up_to: u64) {
        self.shared.change(|inner| inner.numbers.acked(up_to));
    }

    /// Numbers belong to a key, so a new key has a new spool.
    pub fn replace_spool(&self, spool: Spool) {
        self.shared.replace(spool);
    }

    /// Samples leave this out from the next one on.
    pub fn leave_out(&self, filter: Filter) {
        *locked(&self.filter) = Arc::new(filter);
    }

    /// The most bytes on disk from the next sample on. What does not fit any more is declared lost, the oldest first.
    pub fn limit_spool(&self, bytes: u64) {
        self.shared.change(|inner| inner.limit = Some(bytes));
    }

    /// Replaces a file of the data folder as soon as the disk allows. A later content
    /// replaces an earlier one that was not written yet.
    pub fn write_file(&self, name: &'static str, text: String, is_durable: bool) {
        self.shared
            .change(|inner| inner.files.insert(name, FileJob { text, is_durable }));
    }

    /// Waits until everything is on disk, or the disk makes no progress.
    pub fn flush(&self) {
        self.shared.finish(false);
    }

    /// Why samples are not stored; `None` while they are.
    pub fn problem(&self) -> Option<String> {
        self.shared.inner().problem()
    }

    pub fn usage(&self) -> Usage {
        self.shared.inner().usage
    }

    /// The number of the next sample, and the watermark.
    pub fn numbers(&self) -> (u64, u64) {
        let inner = self.shared.inner();
        (inner.numbers.next, inner.numbers.acked)
    }

    /// The service's time now.
    pub fn now(&self) -> SystemTime {
        locked(&self.time).now()
    }

    /// The service's time, to be saved for a restart.
    pub fn anchor(&self) -> Anchor {
        locked(&self.time).anchor()
    }

    /// Waits until there may be something to send. Cancel-safe.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

/// The disk thread ends with its recorder.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.finish(true);
    }
}

async fn answered<T>(
    answer: oneshot::Receiver<Result<T, SpoolError>>,
    patience: Duration,
) -> Result<T, SpoolError> {
    match timeout(patience, answer).await {
        Ok(Ok(answer)) => answer,
        _ => Err(SpoolError::NoAnswer),
    }
}

/// The last number that a report covers.
pub(crate) fn last_number(report: &Report) -> Option<u64> {
    let samples = report.samples.last().map(|sample| sample.seq);
    let gaps = report.gaps.iter().map(|gap| gap.last_seq).max();
    samples.max(gaps)
}

/// The time of the next sample. Samples that a suspended machine missed are not made up for.
fn next_due(due: Duration, now: Duration, interval: Duration) -> Duration {
    let next = due + interval;
    if next > now { next } else { now + interval }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use svc_proto::v1::Sample;

    use super::*;
    use crate::{
        spool::LossReason,
        vitals::tests::{IS_ASKED, IS_SEEN, waiting_sampler},
    };

    const MINUTE: Duration = Duration::from_mins(1);
    const WEEK_MS: i64 = 7 * 86_400_000;

    fn recorder(folder: &std::path::Path, clock: &Clock, boot_id: &str) -> Recorder {
        let dir = Arc::new(DataDir::open(folder).unwrap());
        let spool = Spool::open(&folder.join("spool"), Default::default()).unwrap();
        Recorder::start(spool, dir, clock.clone(), boot_id, None).unwrap()
    }

    async fn reported(recorder: &Recorder, after: u64) -> Report {
        recorder.flush();
        recorder.report(after).await.unwrap().unwrap()
    }

    fn is_near(sample: &Sample, expected: SystemTime) -> bool {
        let at = SystemTime::try_from(sample.sampled_at.unwrap()).unwrap();
        at + MINUTE > expected && at < expected + MINUTE
    }

    #[test]
    fn samples_keep_their_rhythm_and_missed_ones_are_skipped() {
        let second = Duration::from_secs(1);
        assert_eq!(next_due(MINUTE, MINUTE + second, MINUTE), 2 * MINUTE);
        assert_eq!(next_due(MINUTE, 10 * MINUTE, MINUTE), 11 * MINUTE);
    }

    #[tokio::test]
    async fn samples_before_the_first_welcome_are_dated_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        clock.move_wall(-WEEK_MS);
        let recorder = recorder(folder.path(), &clock, "boot");
        let before = SystemTime::now();
        recorder.take().await;
        recorder.take().await;
        // The service has five samples of a former life: both samples get new numbers.
        let welcome = recorder.welcome(5, Some(SystemTime::now()));
        welcome.await.unwrap();
        recorder.take().await;
        let report = reported(&recorder, 5).await;
        assert_eq!(report.gaps.len(), 1, "{:?}", report.gaps);
        let numbers: Vec<u64> = report.samples.iter().map(|sample| sample.seq).collect();
        assert_eq!(numbers, [22, 23, 24]);
        assert!(report.samples.iter().all(|sample| is_near(sample, before)));
        assert!(recorder.report(24).await.unwrap().is_none());
    }

    #[test]
    fn a_smaller_limit_of_the_spool_gives_up_the_oldest_samples() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path(), &Clock::system(), "boot");
        let record = |count| {
            for _ in 0..count {
                recorder.record(Vitals {
                    unreadable_mounts: vec!["x".repeat(255); 4],
                    ..Vitals::default()
                });
                recorder.flush();
            }
            recorder.usage()
        };
        let all = record(40);
        assert_eq!((all.samples, all.given_up), (40, 0));
        recorder.limit_spool(16 * 1024);
        let left = record(20);
        assert!(left.given_up >= 40 && left.bytes <= 16 * 1024, "{left:?}");
        assert_eq!(left.samples + left.given_up, 60);
        recorder.limit_spool(1 << 20);
        assert_eq!(record(20).given_up, left.given_up);
    }

    #[tokio::test]
    async fn the_network_thread_works_while_a_sample_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = recorder(folder.path(), &Clock::system(), "boot");
        let (_dir, sampler) = waiting_sampler();
        recorder.sampler = Arc::new(Mutex::new(sampler));
        let network = async {
            while !IS_ASKED.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            IS_SEEN.store(true, Relaxed);
            recorder.numbers().0
        };
        let (next, ()) = tokio::join!(timeout(MINUTE, network), recorder.take());
        assert_eq!(next, Ok(1), "the sample was not complete then");
        assert_eq!(recorder.numbers().0, 2);
    }

    #[tokio::test]
    async fn samples_of_an_earlier_run_are_dated_within_the_boot_and_declared_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        clock.move_wall(WEEK_MS); // A week ahead: nothing may expire by this clock.
        for _ in 0..2 {
            let recorder = recorder(folder.path(), &clock, "boot");
            recorder.take().await;
        }
        let now = SystemTime::now();
        let same_boot = recorder(folder.path(), &clock, "boot");
        same_boot.welcome(0, Some(now)).await.unwrap();
        let report = reported(&same_boot, 0).await;
        assert_eq!((report.samples.len(), report.gaps.len()), (2, 0));
        assert!(report.samples.iter().all(|sample| is_near(sample, now)));
        drop(same_boot);

        let next_boot = recorder(folder.path(), &clock, "another");
        next_boot.welcome(0, Some(now)).await.unwrap();
        next_boot.take().await;
        let report = reported(&next_boot, 0).await;
        assert_eq!(report.gaps.len(), 1);
        let gap = &report.gaps[0];
        assert_eq!((gap.first_seq, gap.last_seq), (1, 2));
        assert_eq!(gap.reason, LossReason::Undated.text());
        let rest = reported(&next_boot, 2).await;
        assert_eq!(rest.samples[0].seq, 3);
    }
}
