//! Acknowledgements: how far an agent's samples are committed, and which of them are not kept.
//!
//! An acknowledgement follows the commit, and it names every rejected sample up to its number. The agent
//! deletes from its spool what was acknowledged, so a number must never be acknowledged before its commit,
//! nor before its rejection has been named.

use svc_proto::{
    ServerMessage,
    contract::limits::MAX_REJECTIONS_PER_ACK,
    v1::{Ack, Rejection},
};
use svc_store::{GapKind, GapRow};

use super::stream::HeartbeatStream;

/// The reason for a sample that the database refuses for good.
const UNSTORABLE: &str = "the database refuses it";

impl HeartbeatStream {
    /// Notes samples that the database refuses for good. They are named like rejected samples.
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
            self.ack_pending = true;
        }
    }

    /// Sends one acknowledgement if one is pending and the database view is fresh.
    ///
    /// It reaches to the watermark, or, if more rejections remain than fit, to the number before the first
    /// one that it does not name; the rest follows with the next acknowledgement. It never goes beyond what
    /// this stream has brought, whatever the watermark says: numbers that came over an earlier stream are
    /// acknowledged when the agent repeats them. It never goes back: a dead letter may become known after a
    /// higher number was acknowledged, and is then named late.
    pub(super) async fn acknowledge(&mut self) {
        if !self.ack_pending {
            return;
        }
        if !self.context.freshness.is_fresh() {
            self.context.sessions.withhold_acks();
            return;
        }
        let rejected = self.take_rejections();
        let unnamed = self.rejected.front().map(|gap| gap.first_seq);
        let up_to = unnamed.map_or(self.acked, |seq| self.acked.min(seq - 1));
        let up_to = up_to.min(self.numbering.last()).max(self.acked_to_client);
        self.ack_pending = unnamed.is_some_and(|seq| seq <= self.acked);
        self.acked_to_client = up_to;
        while self
            .in_flight
            .pop_front_if(|pending| pending.last_seq <= up_to)
            .is_some()
        {}
        self.inbox
            .set_oldest_pending(self.in_flight.front().copied());
        self.context.pipeline.rejected.inc_by(rejected.len() as u64);
        if self.ack_pending {
            self.inbox.nudge();
        }
        let ack = Ack {
            up_to_seq: up_to.cast_unsigned(),
            rejected,
        };
        self.out.send(ServerMessage::Ack(ack)).await;
    }

    /// The rejections that the watermark covers, one by one, as many as fit into one acknowledgement.
    fn take_rejections(&mut self) -> Vec<Rejection> {
        let mut rejected = Vec::new();
        while rejected.len() < MAX_REJECTIONS_PER_ACK
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
