//! Samples on disk, from the moment they are taken until the service has acknowledged
//! them.
//!
//! The spool assigns sequence numbers, and keeps two promises about them:
//!
//! 1. Every number above the watermark has an answer: its sample, or a gap that says why
//!    there is none. No number is silently missing.
//! 2. A number that the service may have seen never names another sample. The service
//!    stores each number once, so it would drop the second sample without a trace.
//!
//! The second promise decides the order of writes. [`Spool::put`] returns after the
//! frame is synced, so a sample is on disk before anything can send it; and a spool that
//! is opened after a crash continues above every number that can have been sent (`open`).
//! The sync is cheap: at an interval of 30 s the kernel would write the same page before
//! the next sample anyway. On a disk that takes no samples the recorder keeps the promise
//! by other means (`recorder/numbers.rs`), for which [`Spool::reserve`] and
//! [`Spool::traced`] exist.
//!
//! ```text
//! 00000000000000000001.samples1   a segment: frames, in the order of their numbers
//! 00000000000000002105.samples1   the newest segment; frames are appended to it
//! books                           the checkpoint: watermark, next number, losses
//! ```
//!
//! In reading order: `frame` is the format of one sample and `segment` a file of them,
//! `losses` are the numbers that have no sample, and `checkpoint` is what the segments do
//! not say. On these build `open`, `write`, `read` (with `batch`) and `resume`, each one
//! part of [`Spool`]; the tests in `model` run all of them against a simple model. Memory
//! holds a few words per segment, and reading loads one segment of at most 256 KiB at a
//! time.

mod batch;
mod checkpoint;
mod checksum;
mod frame;
mod losses;
#[cfg(test)]
mod model;
mod open;
mod read;
mod resume;
mod segment;
mod write;

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

pub use self::losses::LossReason;
pub(crate) use self::{
    batch::{Batch, Bounds},
    frame::MAX_BODY_BYTES,
    losses::Losses,
};
use self::{
    checkpoint::Checkpoint,
    segment::{Segment, SyncMode, Writer},
};
use crate::stamp::{Stamp, nanos};

/// The most files that the spool keeps, whatever it finds in its folder.
const MAX_SEGMENTS: usize = 1024;
/// A segment spans at most this part of the age limit. Segments are deleted as a whole and
/// only when all of their samples are too old, so the spool keeps little beyond the limit.
const SEGMENTS_PER_AGE: u32 = 64;
/// Acknowledged segments that are kept. If the service's database is restored from a
/// backup, their samples are sent again.
const KEPT_SEGMENTS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub bytes: u64,
    pub age: Duration,
}

/// How much waits to be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Samples that are not acknowledged yet.
    pub samples: u64,
    /// The size on disk, including acknowledged segments that are kept.
    pub bytes: u64,
    /// When the oldest of these samples was taken.
    pub oldest: Option<SystemTime>,
    /// Numbers that are not acknowledged yet and have no sample.
    pub given_up: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("the spool {path} cannot be opened", path = path.display())]
    NotOpened { path: PathBuf, source: io::Error },
    #[error("the disk is full")]
    DiskFull(#[source] io::Error),
    #[error("the disk takes no samples: {0}")]
    NotStored(io::Error),
    #[error("no sequence number can be reserved on disk")]
    NotReserved,
    #[error("the vitals exceed the size of a frame")]
    TooLarge,
    #[error("the sequence numbers are used up")]
    NoNumberLeft,
    #[error("the spool cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("the disk does not answer")]
    NoAnswer,
}

impl SpoolError {
    /// The reason that the service gets if the sample is given up.
    pub(crate) fn loss_reason(&self) -> LossReason {
        match self {
            Self::DiskFull(_) => LossReason::DiskFull,
            _ => LossReason::NotStored,
        }
    }
}

/// One task owns it. Its calls block on small reads and writes of files.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    limits: Limits,
    next: u64,
    checkpoint: Checkpoint,
    /// The checkpoint on disk is older than `checkpoint`.
    checkpoint_stale: bool,
    /// The last attempt to write it failed.
    checkpoint_failed: bool,
    segments: VecDeque<Segment>,
    /// Appends to the newest segment; `None` if the next append starts a new one.
    writer: Option<Writer>,
    /// The highest number that may have been sent to the service. `read` raises it: what
    /// was read counts as sent.
    sent: Cell<u64>,
    /// The highest number with a synced frame.
    synced: u64,
    /// A checkpoint makes a restart continue at this number or above.
    reserved: u64,
    /// `next` of the checkpoint that is on disk.
    saved_next: u64,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

/// What a test lets the disk refuse.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// New frames, as a full disk does.
    Frames,
    /// All writes, as a read-only disk does.
    Writes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 * 1024 * 1024,
            age: Duration::from_hours(7 * 24),
        }
    }
}

impl Limits {
    /// A small spool has small segments, because it frees space by whole segments.
    fn segment_bytes(&self) -> u64 {
        (self.bytes / 16).clamp(4 * 1024, segment::MAX_BYTES)
    }

    fn span(&self) -> u64 {
        u64::try_from((self.age / SEGMENTS_PER_AGE).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Spool {
    /// Stores encoded vitals under a number that is not below the next one. If that fails,
    /// the number can be used again, for the same sample.
    pub fn put(&mut self, seq: u64, at: i64, vitals: &[u8]) -> Result<(), SpoolError> {
        if self.checkpoint_failed {
            self.save();
        }
        self.next = self.next.max(seq);
        self.write(seq, at, vitals, SyncMode::Now)?;
        self.next = seq + 1;
        Ok(())
    }

    /// The next sample has this number or a higher one. The numbers in between need no
    /// answer, because the service has acknowledged them.
    pub fn continue_at(&mut self, seq: u64) {
        self.next = self.next.max(seq);
    }

    /// Another limit of its size. What does not fit any more is given up by the next [`expire`](Self::expire).
    pub fn limit(&mut self, bytes: u64) {
        self.limits.bytes = bytes;
    }

    /// No sample with these numbers will be stored.
    pub fn lose(&mut self, first: u64, last: u64, reason: LossReason) {
        self.next = self.next.max(last + 1);
        self.declare_lost(first, last, reason);
    }

    /// Makes a restart continue above `seq`, although no frame has that number. It needs no
    /// space, so it succeeds on a full disk.
    pub fn reserve(&mut self, seq: u64) -> bool {
        self.reserved = self.reserved.max(seq + 1);
        self.save();
        !self.checkpoint_failed
    }

    /// A restart on this disk, as it is now, continues above this number.
    pub fn traced(&self) -> u64 {
        self.synced.max(self.saved_next.saturating_sub(1))
    }

    /// The highest number that may have been sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// A renumbering was interrupted: the next Welcome must continue it.
    pub(crate) fn is_midway(&self) -> bool {
        self.checkpoint.unsent_after.is_some()
    }

    /// Numbers up to this one may have been sent, from here or from memory.
    pub fn note_sent(&self, seq: u64) {
        self.sent.set(self.sent.get().max(seq));
    }

    /// The number of the next sample.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// The highest watermark that this spool knows.
    pub fn acked_seq(&self) -> u64 {
        self.checkpoint.acked
    }

    /// The service has acknowledged everything up to this number.
    pub fn acked(&mut self, up_to: u64) {
        let up_to = up_to.min(self.next - 1);
        if up_to <= self.checkpoint.acked {
            return;
        }
        self.checkpoint.acked = up_to;
        self.checkpoint.lost.forget(up_to);
        self.checkpoint_stale = true;
        self.drop_oldest(self.holding(up_to + 1).saturating_sub(KEPT_SEGMENTS));
    }

    /// Gives up the samples that exceed the limits of age and size. `now` is `None` while
    /// no Welcome has confirmed the time: then nothing is too old. Samples without a time
    /// are not too old either. A segment has samples of one kind alone, because the two are
    /// further apart than a segment spans.
    pub fn expire(&mut self, now: Option<SystemTime>) {
        let age = i64::try_from(self.limits.age.as_nanos()).unwrap_or(i64::MAX);
        let oldest = now.map_or(i64::MIN, |now| nanos(now).saturating_sub(age));
        self.drop_empty();
        while self.segments.front().is_some_and(|front| {
            front.newest < oldest && !Stamp::from_raw(front.newest).is_moment()
        }) {
            self.give_up_oldest(LossReason::TooOld);
            self.drop_empty();
        }
        self.make_room(0);
    }
}

/// A clean stop writes the checkpoint. After a crash it may be older than the service's
/// watermark, which the next Welcome brings.
impl Drop for Spool {
    fn drop(&mut self) {
        if self.checkpoint_stale {
            self.save();
        }
    }
}
