//! Opening a spool, whatever is on disk.
//!
//! Opening reads every frame once. An unfinished write at the end of the newest segment is
//! cut off: its `put` never returned, so its number was never sent and can be used
//! again. A damaged frame is skipped; its number becomes a gap, because neither a frame nor
//! a loss explains it.
//!
//! The next number must be above every number that can have been sent. Four sources are
//! needed, because each of them can be lost on its own: the end of the newest segment; the
//! checkpoint's `next`, because segments can be deleted; its watermark, because the service
//! may have more than this disk; and its last loss, because a number can be used up without
//! a frame.

use std::{
    cell::Cell, collections::VecDeque, fs::DirBuilder, io, os::unix::fs::DirBuilderExt, path::Path,
};

use svc_proto::contract::limits::MAX_SEQ;

use super::{
    Limits, MAX_SEGMENTS, Spool, SpoolError,
    checkpoint::Checkpoint,
    segment::{self, End, Segment, Writer},
};

impl Spool {
    /// Creates the folder if it is missing. No other process may have it open.
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
            // On a disk that cannot be written, the next sample starts a new segment.
            (Some(newest), Some(offset)) => Writer::reopen(dir, newest.first, offset).ok(),
            _ => None,
        };
        // The former process may have sent everything that is on disk.
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
            synced: next - 1,
            reserved: 0,
            saved_next: 0,
            #[cfg(test)]
            fault: None,
        };
        spool.settle();
        Ok(spool)
    }

    /// Writes the checkpoint, so that its file has its full size before the disk can fill
    /// up, and deletes segments whose deletion was interrupted: a segment whose numbers are
    /// all declared lost.
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

/// Reads all segments. A segment owns the numbers up to the name of the next one.
fn inspect(dir: &Path) -> io::Result<(VecDeque<Segment>, End)> {
    let firsts = segment::list(dir)?;
    let newest = &firsts[firsts.len().saturating_sub(MAX_SEGMENTS)..];
    for first in &firsts[..firsts.len() - newest.len()] {
        // What cannot be deleted is found again at the next start.
        let _ = segment::remove(dir, *first);
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
