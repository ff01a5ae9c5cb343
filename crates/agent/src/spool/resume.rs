//! What Welcome says of our numbers, when it is not what we expected.
//!
//! The service has more than was ever sent from here: this machine was restored
//! from a snapshot, or its spool is a new one, and a former life used the numbers.
//! Samples that were not sent and bear such a number are stored again under new
//! ones. Only what was taken since the spool was opened is known not to have been sent.
//!
//! The service has less than it confirmed: its database was restored. What is still
//! here is sent again; the rest are gaps.

use std::{io, time::UNIX_EPOCH};

use super::{
    LossReason, MAX_SEQ, Spool, SpoolError,
    batch::{Batch, Bounds},
    frame::{Frame, nanos},
    segment::{SyncMode, Writer},
};

/// How much is stored again at once.
const STEP: Bounds = Bounds {
    entries: 500,
    bytes: 256 * 1024,
    last: 0,
};

impl Spool {
    /// Brings the spool in line with `Welcome.acked_seq`: after opening it, before
    /// anything is read. After an error it can be called again.
    pub fn resume(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        let acked_seq = acked_seq.min(MAX_SEQ);
        if acked_seq > self.sent.get() {
            self.renumber(acked_seq)?;
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

    /// Before a step, the books say where it begins: if it is cut short, the next
    /// Welcome repeats it, and no sample is lost (one may be stored under two numbers).
    fn renumber(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        tracing::warn!(
            acked_seq,
            next_seq = self.next,
            "the service has more than was sent from here"
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
            // Whatever else fails, the new number is a gap.
            if let Err(SpoolError::NoNumberLeft) = self.store(nanos(at), &vitals, SyncMode::Later) {
                return Err(SpoolError::NoNumberLeft);
            }
        }
        let synced = self.writer.as_ref().map_or(Ok(()), Writer::sync);
        synced.map_err(SpoolError::NotStored)
    }

    fn rewind(&mut self, acked_seq: u64) -> Result<(), SpoolError> {
        let acked_before = self.checkpoint.acked;
        tracing::warn!(
            acked_seq,
            acked_before,
            "the service has less than it confirmed"
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

    /// Acknowledged numbers whose samples are still here: a segment's or two.
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
