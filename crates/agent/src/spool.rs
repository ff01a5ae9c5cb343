//! Samples on disk, from the moment they were taken until the service has them.
//!
//! Numbers are given here. Of every number above the acknowledged one there is
//! always an answer: the sample, or a gap that says why there is none. And a number
//! that may have been told to the service never names another sample: a frame is
//! on disk, synced, before `append` returns, hence before anybody can send it. That
//! sync costs no more than waiting would: at an interval of 30 s the kernel would
//! write the same page on its own before the next sample.
//!
//! `frame` is the format, `segment` a file of frames, `books` the little that
//! segments do not say, `losses` the numbers given up and why. Memory holds a few
//! words a segment; reading looks at one segment of at most 256 KiB at a time.

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

use svc_proto::v1;

pub use self::losses::LossReason;
use self::{
    checkpoint::Checkpoint,
    segment::{Segment, SyncMode, Writer},
};

/// The last number that the service takes.
pub const MAX_SEQ: u64 = i64::MAX as u64 - 1;
/// A bound on files, whatever was found in the folder.
const MAX_SEGMENTS: usize = 1024;
/// A segment spans at most this part of the age limit, so that little more than
/// what is too old is kept, and nothing younger is given up.
const SEGMENTS_PER_AGE: u32 = 64;
/// Whole segments kept after their acknowledgement, for a service whose database is
/// restored from a backup.
const KEPT_SEGMENTS: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub bytes: u64,
    pub age: Duration,
}

/// How much waits for the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Samples that are not acknowledged yet.
    pub samples: u64,
    /// On disk, with what is kept a little longer.
    pub bytes: u64,
    /// When the oldest of the samples was taken.
    pub oldest: Option<SystemTime>,
    /// Numbers that are not acknowledged yet and have no sample.
    pub given_up: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("the spool {path} cannot be opened", path = path.display())]
    NotOpened { path: PathBuf, source: io::Error },
    #[error("the disk is full: the sample is given up")]
    DiskFull(#[source] io::Error),
    #[error("the disk failed: the sample is given up")]
    NotStored(#[source] io::Error),
    #[error("the vitals are too large for a frame: the sample is given up")]
    TooLarge,
    #[error("the sequence numbers are used up")]
    NoNumberLeft,
    #[error("the spool cannot be read")]
    Unreadable(#[source] io::Error),
}

/// Not shared: one task owns it. Its calls block on small reads and writes.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    limits: Limits,
    next: u64,
    checkpoint: Checkpoint,
    /// Whether the books on disk lag behind.
    checkpoint_stale: bool,
    /// Whether they lag because they could not be written.
    checkpoint_failed: bool,
    segments: VecDeque<Segment>,
    /// Of the newest segment; none before the first append, and after a failure.
    writer: Option<Writer>,
    /// The highest number that may have been told to anybody.
    sent: Cell<u64>,
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
    /// Small spools have small segments, because room is made by whole ones.
    fn segment_bytes(&self) -> u64 {
        (self.bytes / 16).clamp(4 * 1024, segment::MAX_BYTES)
    }

    fn span(&self) -> u64 {
        u64::try_from((self.age / SEGMENTS_PER_AGE).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Spool {
    /// Stores a sample under the next number. If that fails, the number is a gap.
    pub fn append(
        &mut self,
        sampled_at: SystemTime,
        vitals: &v1::Vitals,
    ) -> Result<u64, SpoolError> {
        if self.checkpoint_failed {
            self.save();
        }
        self.store(frame::nanos(sampled_at), vitals, SyncMode::Now)
    }

    /// The number that the next sample will bear.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// What the service confirmed last, as far as this spool was told.
    pub fn acked_seq(&self) -> u64 {
        self.checkpoint.acked
    }

    /// The service has everything up to this number.
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

    /// Gives up what is too old or too much.
    pub fn expire(&mut self, now: SystemTime) {
        let age = i64::try_from(self.limits.age.as_nanos()).unwrap_or(i64::MAX);
        let oldest = frame::nanos(now).saturating_sub(age);
        self.drop_empty();
        while self
            .segments
            .front()
            .is_some_and(|front| front.newest < oldest)
        {
            self.give_up_oldest(LossReason::TooOld);
            self.drop_empty();
        }
        self.make_room(0);
    }
}

/// A clean end leaves the books as they are known; after any other, the service's
/// Welcome tells how far it is.
impl Drop for Spool {
    fn drop(&mut self) {
        if self.checkpoint_stale {
            self.save();
        }
    }
}
