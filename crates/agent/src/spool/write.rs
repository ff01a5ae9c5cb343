//! Writing: which segment a frame goes to, how the spool frees space for it, and the order
//! of writes.
//!
//! Crash safety: the checkpoint is written before a segment is deleted, with the loss or
//! the watermark that explains the deletion. After a crash between the two, the segment is
//! still there, and its numbers are declared lost or acknowledged; `open` deletes it. In
//! the opposite order, a crash would leave numbers that nothing explains, and the agent
//! would report them as damaged.

use std::io;

use super::{
    LossReason, MAX_SEGMENTS, Spool, SpoolError, frame,
    segment::{self, Segment, SyncMode, Writer},
};

impl Spool {
    pub(super) fn declare_lost(&mut self, first: u64, last: u64, reason: LossReason) {
        tracing::warn!(
            first_seq = first,
            last_seq = last,
            reason = reason.text(),
            "samples are given up"
        );
        self.checkpoint.lost.add(first, last, reason);
        self.save();
    }

    pub(super) fn give_up_oldest(&mut self, reason: LossReason) {
        let Some(oldest) = self.segments.front() else {
            return;
        };
        let first = oldest.first.max(self.checkpoint.acked + 1);
        let last = self.last_of(0);
        if first <= last {
            self.declare_lost(first, last, reason);
        }
        self.drop_oldest(1);
    }

    /// Gives up the oldest segments until `more` bytes fit into the limits.
    pub(super) fn make_room(&mut self, more: u64) {
        let newest_stays = usize::from(more == 0);
        while self.segments.len() > newest_stays && self.is_full(more) {
            self.give_up_oldest(LossReason::SpoolFull);
        }
    }

    /// A segment without a readable sample need not be kept: its numbers are gaps anyway.
    pub(super) fn drop_empty(&mut self) {
        while self
            .segments
            .front()
            .is_some_and(|front| front.samples == 0)
        {
            self.drop_oldest(1);
        }
    }

    pub(super) fn drop_oldest(&mut self, count: usize) {
        if count > 0 && self.checkpoint_stale {
            self.save();
        }
        for segment in self.segments.drain(..count) {
            remove(&self.dir, segment);
        }
        if self.segments.is_empty() {
            self.writer = None;
        }
    }

    /// Writes the checkpoint. After a failure the next `put` tries again; until then a
    /// crash would lose what changed.
    pub(super) fn save(&mut self) {
        self.checkpoint.next = self.next.max(self.reserved);
        let saved = self.save_checkpoint();
        match &saved {
            Ok(()) => self.saved_next = self.checkpoint.next,
            Err(error) if !self.checkpoint_failed => {
                tracing::warn!(%error, "the spool's checkpoint could not be written");
            }
            Err(_) => {}
        }
        self.checkpoint_stale = saved.is_err();
        self.checkpoint_failed = saved.is_err();
    }

    fn save_checkpoint(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if self.fault == Some(super::Fault::Writes) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.checkpoint.save(&self.dir)
    }

    pub(super) fn write(
        &mut self,
        seq: u64,
        at: i64,
        vitals: &[u8],
        sync: SyncMode,
    ) -> Result<(), SpoolError> {
        #[cfg(test)]
        if self.fault.is_some() {
            return Err(SpoolError::DiskFull(io::ErrorKind::StorageFull.into()));
        }
        let frame = frame::encode(seq, at, vitals).ok_or(SpoolError::TooLarge)?;
        if self.is_segment_due(at, frame.len() as u64) {
            self.begin_segment(seq).map_err(failed)?;
        }
        if let (Some(writer), Some(segment)) = (&mut self.writer, self.segments.back_mut()) {
            writer.append(&frame, sync).map_err(failed)?;
            segment.bytes += frame.len() as u64;
            segment.count_sample(at);
            if sync == SyncMode::Now {
                self.synced = self.synced.max(seq);
            }
        }
        Ok(())
    }

    fn is_segment_due(&self, at: i64, length: u64) -> bool {
        let (Some(writer), Some(newest)) = (&self.writer, self.segments.back()) else {
            return true;
        };
        let is_long = newest.bytes + length > self.limits.segment_bytes();
        let is_old = at.abs_diff(newest.began) > self.limits.span();
        writer.broken || newest.samples > 0 && (is_long || is_old)
    }

    fn begin_segment(&mut self, first: u64) -> io::Result<()> {
        if let Some(writer) = self.writer.take_if(|writer| !writer.broken) {
            writer.sync()?;
        }
        self.writer = None;
        if let Some(empty) = self.segments.pop_back_if(|newest| newest.samples == 0) {
            remove(&self.dir, empty);
        }
        self.make_room(self.limits.segment_bytes());
        self.writer = Some(Writer::create(&self.dir, first)?);
        self.segments.push_back(Segment::empty(first));
        Ok(())
    }

    fn is_full(&self, more: u64) -> bool {
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        bytes.saturating_add(more) > self.limits.bytes || self.segments.len() >= MAX_SEGMENTS
    }
}

fn remove(dir: &std::path::Path, segment: Segment) {
    if let Err(error) = segment::remove(dir, segment.first) {
        tracing::warn!(%error, first_seq = segment.first, "a segment of the spool could not be deleted");
    }
}

/// A quota or a limit on file sizes counts as a full disk.
fn failed(error: io::Error) -> SpoolError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => SpoolError::DiskFull(error),
        _ => SpoolError::NotStored(error),
    }
}
