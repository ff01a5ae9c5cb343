//! Sequence numbers, and which of them may be sent.
//!
//! The promise: **a number that the service may know never names another sample.** The
//! service stores each number once, so it would drop the second sample without a trace. The
//! danger is a restart: the new process sees the disk, but not what the former one kept in
//! memory only, and might use a number again that the former one has sent.
//!
//! While the disk works, a sample is sent after its frame is synced. A restart finds the
//! frame and continues above it.
//!
//! While the disk does not take samples, they are sent from memory. A number may then be
//! sent only if something else makes a restart continue above it. That is its *trace*, and
//! there are two kinds:
//!
//! 1. **A reservation on disk.** A full disk still lets the agent overwrite the checkpoint
//!    in place. The worker writes a `next` some numbers ahead; a restart continues there.
//!
//! 2. **A watermark at the service.** A read-only or stalled disk takes no reservation.
//!    Let `d` be the number above which a restart would continue as the disk is now. The
//!    agent declares a gap above `d` and waits for its acknowledgement. From then on the
//!    service's watermark is above `d`, for good. A later process reads `d` from the disk
//!    and `acked_seq > d` from Welcome, and so knows that a process sent numbers of which
//!    the disk has no trace. Two more rules make that knowledge enough. First, such a
//!    process never sends more than [`UNTRACED`] numbers above the watermark. So the later
//!    process, which leaves out as many numbers above *its* Welcome's watermark
//!    (`Spool::resume`), leaves out every number that may still be on its way into
//!    the database. Second, `d` must not rise unnoticed up to the watermark. A write that
//!    failed or hangs may still reach the disk later; the gap therefore ends above every
//!    number that was ever handed to the spool (`attempted`). And before the spool writes
//!    anything new, the worker reserves all numbers that were sent.
//!
//! If the process ends before the gap is acknowledged, a later one may use the gap's numbers
//! for samples. If the gap then reaches the database first, those samples are refused as
//! repetitions. They are lost, but the database has them as declared gaps, and no number
//! ever names two samples.
//!
//! The samples that wait for the trace have numbers already, which were never sent. The gap
//! takes the lowest of these numbers, and the samples move up.

use svc_proto::contract::limits::MAX_SEQ;

use super::window::{Window, WindowSample};
use crate::{
    spool::{LossReason, MAX_BODY_BYTES, Spool},
    stamp::Stamp,
};

/// The most numbers above the watermark that are sent without a trace on disk.
pub(super) const UNTRACED: u64 = 16;

/// Whether samples are sent from disk or from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskState {
    Works,
    /// The last sample was not stored, and the attempt to store a newer one is not over.
    Undecided,
    Fails,
}

#[derive(Debug)]
pub(super) struct Numbers {
    pub window: Window,
    /// The number of the next sample.
    pub next: u64,
    pub acked: u64,
    /// The highest number that was given to a session. It counts as sent.
    pub handed: u64,
    /// The spool answers for the numbers up to this one.
    pub stored: u64,
    /// A restart on the disk as it is now continues above this number.
    pub traced: u64,
    /// The highest number that the disk thread has taken to hand it to the spool.
    pub attempted: u64,
    /// The end of the gap that leaves a trace at the service.
    gap: u64,
    /// The next Welcome must go to the spool, which continues a renumbering.
    is_midway: bool,
    ids: u64,
}

impl Numbers {
    pub fn of(spool: &Spool) -> Self {
        let next = spool.next_seq();
        Self {
            window: Window::new(next),
            next,
            acked: spool.acked_seq(),
            // The former process may have sent everything that is on disk.
            handed: spool.sent(),
            stored: next - 1,
            traced: spool.traced(),
            attempted: next - 1,
            gap: 0,
            is_midway: spool.is_midway(),
            ids: 0,
        }
    }

    pub fn take(&mut self, at: Stamp, vitals: Vec<u8>, reason: LossReason) {
        if self.next > MAX_SEQ {
            return;
        }
        if vitals.len() > MAX_BODY_BYTES {
            self.window.lost.add(self.next, self.next, reason);
            self.next += 1;
            return;
        }
        self.ids += 1;
        let entry = WindowSample {
            id: self.ids,
            seq: self.next,
            at,
            vitals,
            is_stored: false,
        };
        self.next += 1;
        self.window.push(entry, reason);
    }

    pub fn acked(&mut self, up_to: u64) {
        let up_to = up_to.min(self.next - 1);
        if up_to > self.acked {
            self.acked = up_to;
            self.window.forget(up_to);
        }
    }

    /// The highest number that may be given to a session.
    pub fn sendable(&mut self, disk: DiskState) -> u64 {
        match disk {
            DiskState::Works => return self.stored,
            DiskState::Undecided => {}
            DiskState::Fails => self.leave_trace(),
        }
        let on_disk = self.stored.max(self.traced);
        let at_service = match self.acked > on_disk {
            true => self.acked.saturating_add(UNTRACED),
            false => self.gap,
        };
        on_disk.max(at_service).min(self.next - 1)
    }

    /// Places the gap, unless the samples that wait have a trace or nothing waits.
    fn leave_trace(&mut self) {
        let on_disk = self.stored.max(self.traced);
        let has_trace = self.acked > on_disk || self.gap > on_disk.max(self.acked);
        let sent = on_disk.max(self.handed);
        if has_trace || self.next - 1 <= sent {
            return;
        }
        let by = self.attempted.max(sent) + 1 - sent;
        if self.next + by > MAX_SEQ {
            return;
        }
        self.window.shift(sent, by);
        self.next += by;
        self.gap = sent + by;
        self.window
            .lost
            .add(sent + 1, self.gap, LossReason::NotStored);
    }

    /// Applies a Welcome that only acknowledges. `false`: the spool must renumber or rewind.
    pub fn welcomed(&mut self, acked_seq: u64) -> bool {
        let only_acknowledges = (self.acked..=self.handed).contains(&acked_seq) && !self.is_midway;
        if only_acknowledges {
            self.acked(acked_seq);
        }
        only_acknowledges
    }

    /// Takes over what the spool has renumbered or rewound. Samples that are in memory only
    /// follow those of the spool; so do the numbers that were lost in memory and never
    /// declared.
    pub fn resumed(&mut self, spool: &Spool, acked_seq: u64) {
        let next = spool.next_seq();
        if acked_seq > self.handed {
            self.window.forget(self.handed);
            self.handed = (next - 1).min(acked_seq + UNTRACED);
            self.next = self.window.renumber(next);
            (self.attempted, self.gap) = (next - 1, 0);
        }
        (self.acked, self.is_midway) = (acked_seq, false);
        (self.stored, self.traced) = (next - 1, spool.traced());
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    /// Numbers whose spool has `stored` samples.
    fn numbers(stored: u64) -> (tempfile::TempDir, Spool, Numbers) {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(dir.path(), Default::default()).unwrap();
        for seq in 1..=stored {
            spool.put(seq, 0, &[]).unwrap();
        }
        let numbers = Numbers::of(&spool);
        (dir, spool, numbers)
    }

    fn take(numbers: &mut Numbers, count: u64) {
        for _ in 0..count {
            numbers.take(Stamp::time(UNIX_EPOCH), Vec::new(), LossReason::NotStored);
        }
    }

    /// The samples and gaps that a session gets, which count as sent.
    fn hand(numbers: &mut Numbers, disk: DiskState) -> (Vec<u64>, Vec<(u64, u64)>) {
        let last = numbers.sendable(disk);
        let report = numbers.window.report(numbers.acked, last);
        numbers.handed = numbers.handed.max(last);
        let samples = report.samples.iter().map(|sample| sample.seq).collect();
        let gaps = report.gaps.iter();
        (
            samples,
            gaps.map(|gap| (gap.first_seq, gap.last_seq)).collect(),
        )
    }

    #[test]
    fn without_a_trace_a_gap_is_sent_first_and_the_samples_follow_its_acknowledgement() {
        let (_dir, _spool, mut numbers) = numbers(10);
        numbers.acked(10);
        take(&mut numbers, 1);
        numbers.attempted = 11; // The write of 11 hangs and may reach the disk later.
        take(&mut numbers, 1);
        assert_eq!(
            hand(&mut numbers, DiskState::Fails),
            (vec![], vec![(11, 12)])
        );
        assert_eq!(
            hand(&mut numbers, DiskState::Fails),
            (vec![], vec![(11, 12)]),
            "once"
        );
        numbers.acked(12);
        assert_eq!(hand(&mut numbers, DiskState::Fails), (vec![13, 14], vec![]));
    }

    #[test]
    fn a_later_process_leaves_out_what_may_still_arrive() {
        let (dir, spool, mut numbers) = numbers(10);
        numbers.acked(10);
        take(&mut numbers, 100);
        hand(&mut numbers, DiskState::Fails);
        numbers.acked(11);
        hand(&mut numbers, DiskState::Fails);
        numbers.acked(20);
        hand(&mut numbers, DiskState::Fails);
        let sent = numbers.handed;
        drop(spool);

        let mut spool = Spool::open(dir.path(), Default::default()).unwrap();
        let mut later = Numbers::of(&spool);
        take(&mut later, 2);
        assert!(!later.welcomed(20), "the watermark is above the disk's end");
        spool.resume(20, UNTRACED).unwrap();
        later.resumed(&spool, 20);
        later.stored = later.next - 1;
        let (samples, _) = hand(&mut later, DiskState::Works);
        assert!(samples.iter().all(|seq| *seq > sent), "{samples:?} {sent}");
        assert_eq!(samples.len(), 2);
    }
}
