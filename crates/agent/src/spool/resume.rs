//! Agreeing with the service on the numbers, after each Welcome.
//!
//! Usually `Welcome.acked_seq` lies between the watermark that the spool knows and the last
//! number that was sent. Then it is an acknowledgement like any other. Two cases differ:
//!
//! **The service has more than was ever sent from here.** The machine was restored from a
//! snapshot, or the spool was lost, and a former life of this agent used the numbers. The
//! service would ignore samples with these numbers as duplicates. [`Spool::resume`]
//! therefore *renumbers*: it stores the samples with such numbers again, above the service's
//! watermark. Only samples that are known to be unsent may be renumbered; otherwise one
//! sample would be stored under two numbers. These are the samples taken since the spool
//! was opened, because a former process may have sent everything older.
//!
//! **The service has less than it acknowledged.** Its database was restored from a backup.
//! The spool *rewinds*: samples that are still on disk are sent again, and the numbers of
//! all others become gaps.

use std::{io, time::UNIX_EPOCH};

use prost::Message;
use svc_proto::contract::limits::MAX_SEQ;

use super::{
    LossReason, Spool, SpoolError,
    batch::{Batch, Bounds},
    frame::Frame,
    segment::{SyncMode, Writer},
};
use crate::stamp::nanos;

/// How much one step of renumbering stores.
const STEP: Bounds = Bounds {
    entries: 500,
    bytes: 256 * 1024,
    last: 0,
};

impl Spool {
    /// Brings the spool in line with `Welcome.acked_seq`. It must be called before `read`
    /// after the spool was opened. After an error it can be called again.
    ///
    /// If the service has more than was sent from here, the next `margin` numbers are not
    /// used either: a former life may have sent samples with these numbers that the service
    /// has not stored yet.
    pub fn resume(&mut self, acked_seq: u64, margin: u64) -> Result<(), SpoolError> {
        let acked_seq = acked_seq.min(MAX_SEQ);
        if acked_seq > self.sent.get() {
            let doubtful = acked_seq.saturating_add(margin).min(MAX_SEQ);
            self.renumber(doubtful)?;
            if doubtful > acked_seq {
                let lost = &mut self.checkpoint.lost;
                lost.add(acked_seq + 1, doubtful, LossReason::MaybeSent);
            }
        } else if acked_seq < self.checkpoint.acked {
            self.rewind(acked_seq)?;
        }
        self.checkpoint_stale |= self.checkpoint.unsent_after.take().is_some();
        self.acked(acked_seq);
        if self.checkpoint_stale {
            self.save();
        }
        Ok(())
    }

    /// Moves the unsent samples up to `acked_seq` behind the service's watermark, in steps
    /// that bound the memory used.
    ///
    /// A crash may interrupt it. Before each step the checkpoint records where the step
    /// begins (`unsent_after`), and `open` continues from there: the next Welcome repeats the
    /// step. Its samples may then be on disk twice, under two new numbers, and the service
    /// stores them twice. That is accepted, because the alternative is to lose them. The
    /// segments of finished steps are deleted only after that record, so no sample is ever
    /// on disk zero times.
    fn renumber(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        tracing::warn!(
            acked_seq,
            next_seq = self.next,
            "the service has samples that were not sent from here: renumbering"
        );
        let last = acked_seq.min(self.next - 1);
        self.next = self.next.max(acked_seq + 1);
        self.checkpoint_stale = true;
        while self.sent.get() < last {
            self.checkpoint.unsent_after = Some(self.sent.get());
            self.save();
            self.drop_oldest(self.holding(self.sent.get() + 1));
            let batch = self.collect(self.sent.get(), Bounds { last, ..STEP })?;
            let done = batch.next - 1;
            self.store_again(batch)?;
            self.sent.set(done);
        }
        self.sent.set(acked_seq);
        Ok(())
    }

    fn store_again(&mut self, batch: Batch) -> Result<(), SpoolError> {
        for gap in &batch.report.gaps {
            for loss in self.checkpoint.lost.explain(gap.first_seq, gap.last_seq) {
                let first = self.next;
                self.next = first
                    .saturating_add(loss.last - loss.first + 1)
                    .min(MAX_SEQ + 1);
                self.declare_lost(first, self.next - 1, loss.reason);
            }
        }
        for sample in batch.report.samples {
            let at = sample.sampled_at.and_then(|at| at.try_into().ok());
            let (at, vitals) = (at.unwrap_or(UNIX_EPOCH), sample.vitals.unwrap_or_default());
            self.store_next(nanos(at), &vitals.encode_to_vec())?;
        }
        let synced = self.writer.as_ref().map_or(Ok(()), Writer::sync);
        synced.map_err(SpoolError::NotStored)
    }

    /// Uses up a number even if the sample cannot be stored: a write that failed may still
    /// have left a readable frame on disk.
    fn store_next(&mut self, at: i64, vitals: &[u8]) -> Result<(), SpoolError> {
        let seq = self.next;
        if seq > MAX_SEQ {
            return Err(SpoolError::NoNumberLeft);
        }
        let written = self.write(seq, at, vitals, SyncMode::Later);
        self.next = seq + 1;
        if let Err(error) = written {
            self.declare_lost(seq, seq, error.loss_reason());
        }
        Ok(())
    }

    fn rewind(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        let acked_before = self.checkpoint.acked;
        tracing::warn!(
            acked_seq,
            acked_before,
            "the service has less than it acknowledged: sending again"
        );
        let kept = self
            .kept(acked_seq + 1, acked_before)
            .map_err(SpoolError::Unreadable)?;
        self.checkpoint.acked = acked_seq;
        let mut next = acked_seq + 1;
        for seq in kept.into_iter().chain([acked_before + 1]) {
            if next < seq {
                self.checkpoint
                    .lost
                    .add(next, seq - 1, LossReason::Forgotten);
            }
            next = seq + 1;
        }
        self.save();
        Ok(())
    }

    /// The acknowledged numbers whose samples are still on disk, in one or two segments.
    fn kept(&self, first: u64, last: u64) -> io::Result<Vec<u64>> {
        let mut kept = Vec::new();
        for index in self.holding(first)..self.segments.len() {
            if self.segments[index].first > last {
                break;
            }
            let bytes = self.bytes_of(index)?;
            let whole = self.frames_of(index, &bytes).filter(Frame::is_whole);
            kept.extend(
                whole
                    .map(|frame| frame.seq)
                    .filter(|seq| (first..=last).contains(seq)),
            );
        }
        Ok(kept)
    }
}
