//! Opening: what is on disk becomes a spool, whatever is on disk.
//!
//! Every frame is looked at once. An unfinished write is cut off; what is damaged
//! is left out, and its numbers are gaps because nothing answers for them. The
//! next number is above every one that can have been told to the service.

use std::{
    cell::Cell, collections::VecDeque, fs::DirBuilder, io, os::unix::fs::DirBuilderExt, path::Path,
};

use super::{
    Limits, MAX_SEGMENTS, MAX_SEQ, Spool, SpoolError,
    checkpoint::Checkpoint,
    segment::{self, End, Segment, Writer},
};

impl Spool {
    /// Makes the folder if it is missing. Another process must not have it open.
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, SpoolError> {
        Self::load(dir, limits).map_err(|source| SpoolError::NotOpened {
            path: dir.into(),
            source,
        })
    }

    fn load(dir: &Path, limits: Limits) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut checkpoint = Checkpoint::load(dir)?;
        let (segments, end) = inspect(dir)?;
        let next = [
            end.next,
            checkpoint.next,
            checkpoint.acked + 1,
            checkpoint.lost.last() + 1,
        ];
        let next = next.into_iter().fold(1, u64::max);
        checkpoint.lost.forget(checkpoint.acked);
        let writer = match (segments.back(), end.offset) {
            (Some(newest), Some(offset)) => Some(Writer::reopen(dir, newest.first, offset)?),
            _ => None,
        };
        let sent = Cell::new(checkpoint.unsent_after.unwrap_or(next - 1));
        let mut spool = Self {
            dir: dir.into(),
            limits,
            next,
            checkpoint,
            checkpoint_stale: true,
            checkpoint_failed: false,
            segments,
            writer,
            sent,
        };
        spool.settle();
        Ok(spool)
    }

    /// Makes the books, so that their room is there when the disk is full, and drops
    /// what an interrupted deletion left.
    fn settle(&mut self) {
        self.save();
        while let Some(oldest) = self.segments.front() {
            let rest = oldest.first.max(self.checkpoint.acked + 1)..=self.last_of(0);
            let is_lost = !rest.is_empty() && self.checkpoint.lost.covers(rest);
            if !is_lost || self.segments.len() == 1 {
                break;
            }
            self.drop_oldest(1);
        }
        self.drop_empty();
        self.make_room(0);
    }
}

/// A segment ends where the next begins.
fn inspect(dir: &Path) -> io::Result<(VecDeque<Segment>, End)> {
    let firsts = segment::list(dir)?;
    let newest = &firsts[firsts.len().saturating_sub(MAX_SEGMENTS)..];
    for first in &firsts[..firsts.len() - newest.len()] {
        segment::remove(dir, *first)?;
    }
    let mut segments = VecDeque::with_capacity(newest.len());
    let mut end = End {
        next: 1,
        offset: None,
    };
    for (index, first) in newest.iter().enumerate() {
        let last = newest.get(index + 1).map_or(MAX_SEQ, |next| next - 1);
        let (segment, segment_end) = Segment::inspect(dir, *first..=last)?;
        segments.push_back(segment);
        end = segment_end;
    }
    Ok((segments, end))
}
