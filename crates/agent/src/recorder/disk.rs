//! The disk thread: it owns the spool and does everything that may wait for the disk.
//!
//! A disk can stall for minutes, and the agent must report all the while. So the network
//! thread only changes [`Shared`], and this thread looks there for work. It takes one job at a
//! time, and holds the lock only between jobs.

use std::{
    io,
    sync::{Arc, PoisonError},
    thread,
    time::Instant,
};

use super::{
    numbers::UNTRACED,
    shared::{FileJob, Job, Read, Resume, Shared},
    window::WindowSample,
};
use crate::{
    data_dir::DataDir,
    spool::{LossReason, Spool, SpoolError},
    wire::{MAX_REPORT_BYTES, MAX_REPORT_SAMPLES},
};

/// How many numbers a reservation is ahead.
const RESERVED: u64 = 16;

/// What the thread owns.
pub(super) struct Disk {
    pub shared: Arc<Shared>,
    pub spool: Spool,
    dir: Arc<DataDir>,
}

impl Disk {
    pub fn new(shared: Arc<Shared>, spool: Spool, dir: Arc<DataDir>) -> Self {
        Self { shared, spool, dir }
    }

    pub fn start(self) -> io::Result<()> {
        thread::Builder::new()
            .name("disk".into())
            .spawn(|| self.run())?;
        Ok(())
    }

    fn run(mut self) {
        while let Some(job) = self.next_job() {
            self.work(job);
            self.shared.change(|inner| {
                inner.busy_since = None;
                inner.jobs_done += 1;
            });
            self.shared.changed.notify_one();
        }
        let handed = self.shared.inner().numbers.handed;
        let Self {
            shared,
            mut spool,
            dir,
        } = self;
        if handed > spool.traced() {
            spool.reserve(handed);
        }
        drop(spool); // Writes the checkpoint.
        drop(dir);
        shared.change(|inner| inner.has_ended = true);
    }

    /// `None`: the agent ends, and everything is done.
    fn next_job(&mut self) -> Option<Job> {
        let mut inner = self.shared.inner();
        loop {
            if let Some(job) = inner.next_job(self.spool.acked_seq()) {
                inner.busy_since = Some(Instant::now());
                return Some(job);
            }
            if inner.must_end {
                return None;
            }
            let woken = self.shared.work.wait(inner);
            inner = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn work(&mut self, job: Job) {
        match job {
            Job::Store(entry) => self.store(&entry),
            Job::Acked(up_to) => self.acked(up_to),
            Job::Expire(now) => {
                self.spool.expire(now);
                self.publish();
            }
            Job::Limit(bytes) => self.spool.limit(bytes),
            Job::Replace(spool) => {
                self.spool = *spool;
                self.publish();
            }
            Job::File(name, file) => self.write(name, &file),
            Job::Read(Read { after, answer }) => {
                let report = self.spool.read(after, MAX_REPORT_SAMPLES, MAX_REPORT_BYTES);
                drop(answer.send(report)); // Nobody may wait any more.
            }
            Job::Resume(Resume { acked_seq, answer }) => {
                drop(answer.send(self.resume(acked_seq)));
            }
        }
    }

    /// Stores a sample, or reserves numbers so that it can be sent from memory.
    fn store(&mut self, entry: &WindowSample) {
        let stored = self.put(entry);
        if stored.is_err() && self.spool.traced() < entry.seq + 1 {
            self.spool.reserve(entry.seq + RESERVED);
        }
        let mut is_current = true;
        self.shared.change(|inner| {
            let numbers = &mut inner.numbers;
            if stored.is_ok() {
                is_current = numbers.window.set_stored(entry.id, entry.seq);
            }
            inner.is_resting = stored.is_err();
            inner.note(stored.as_ref().err());
        });
        if !is_current {
            // The sample has moved up while it was written: its old number is a gap.
            self.spool.lose(entry.seq, entry.seq, LossReason::NotStored);
        }
        self.publish();
    }

    fn put(&mut self, entry: &WindowSample) -> Result<(), SpoolError> {
        let (handed, missing) = self.shared.change(|inner| {
            let numbers = &mut inner.numbers;
            let first = self.spool.next_seq().max(numbers.acked + 1);
            let last = entry.seq - 1;
            let missing = (first <= last).then(|| numbers.window.lost.explain(first, last));
            (numbers.handed, missing.unwrap_or_default())
        });
        if handed > self.spool.traced() && !self.spool.reserve(handed) {
            return Err(SpoolError::NotReserved);
        }
        for loss in missing {
            self.spool.lose(loss.first, loss.last, loss.reason);
        }
        self.spool.put(entry.seq, entry.at.raw(), &entry.vitals)
    }

    /// Samples that went through memory alone may have been acknowledged.
    fn acked(&mut self, up_to: u64) {
        self.spool.continue_at(up_to + 1);
        self.spool.acked(up_to);
        self.publish();
    }

    pub fn resume(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        let handed = self.shared.inner().numbers.handed;
        self.spool.note_sent(handed);
        if acked_seq > handed {
            self.spool.continue_at(handed + 1);
        }
        self.spool.resume(acked_seq, UNTRACED)?;
        self.shared
            .change(|inner| inner.numbers.resumed(&self.spool, acked_seq));
        Ok(())
    }

    fn publish(&self) {
        let usage = self.spool.usage();
        let mut inner = self.shared.inner();
        inner.usage = usage;
        let numbers = &mut inner.numbers;
        numbers.stored = numbers.stored.max(self.spool.next_seq() - 1);
        numbers.traced = self.spool.traced();
    }

    /// A failure does not stop the agent: the service sends all of this again.
    fn write(&self, name: &'static str, file: &FileJob) {
        if let Err(error) = self.dir.replace(name, &file.text, file.is_durable) {
            tracing::debug!(%error, "a file could not be written");
        }
    }
}
