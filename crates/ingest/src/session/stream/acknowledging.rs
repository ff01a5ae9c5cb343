//! What an agent is told of its samples: how far they are safe, and which are not kept.
//!
//! An acknowledgement follows the commit, and names every rejection up to its number.

use svc_proto::v1::{Ack, Rejection, heartbeat_response::Message as Saying};
use svc_store::{GapKind, GapRow};

use super::Stream;

/// What an agent is told of a sample that the database refuses.
const UNSTORABLE: &str = "the database refuses it";
/// Rejections named in one acknowledgement; the rest follow in the next ones.
const REJECTIONS: usize = 100;

impl Stream {
    /// What the database refuses for good is named like what breaks a rule.
    pub(super) fn note_refused(&mut self, seqs: Vec<i64>) {
        if !seqs.is_empty() {
            let refused = seqs.into_iter().map(|seq| GapRow {
                first_seq: seq,
                last_seq: seq,
                kind: GapKind::DeadLetter,
                reason: UNSTORABLE.into(),
            });
            self.rejected.extend(refused);
            let by_number = |gap: &GapRow| gap.first_seq;
            self.rejected.make_contiguous().sort_by_key(by_number);
            self.owed = true;
        }
    }

    /// Everything up to the watermark, with the rejections that it covers; held
    /// back while the database is out of sight.
    pub(super) async fn acknowledge(&mut self) {
        if !self.owed {
            return;
        }
        if !self.context.watch.is_fresh() {
            self.context.sessions.withhold();
            return;
        }
        let rejected = self.rejections();
        let untold = self.rejected.front().map(|gap| gap.first_seq);
        let up_to = untold.map_or(self.acked, |seq| self.acked.min(seq - 1));
        let up_to = up_to.max(self.told); // A dead letter may be named late.
        self.owed = untold.is_some_and(|seq| seq <= self.acked);
        self.told = up_to;
        while self
            .in_flight
            .pop_front_if(|awaited| awaited.last_seq <= up_to)
            .is_some()
        {}
        self.inbox.awaits(self.in_flight.front().copied());
        self.context.pipeline.rejected.inc_by(rejected.len() as u64);
        if self.owed {
            self.inbox.nudge();
        }
        let up_to_seq = up_to.cast_unsigned();
        self.out
            .say(Saying::Ack(Ack {
                up_to_seq,
                rejected,
            }))
            .await;
    }

    /// Those that the watermark covers, one by one, as many as fit an acknowledgement.
    fn rejections(&mut self) -> Vec<Rejection> {
        let mut rejected = Vec::new();
        while rejected.len() < REJECTIONS
            && let Some(gap) = self.rejected.front_mut()
            && gap.first_seq <= self.acked
        {
            rejected.push(Rejection {
                seq: gap.first_seq.cast_unsigned(),
                reason: gap.reason.clone().into_owned(),
            });
            gap.first_seq += 1;
            if gap.first_seq > gap.last_seq {
                self.rejected.pop_front();
            }
        }
        rejected
    }
}
