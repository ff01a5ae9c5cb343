//! One heartbeat stream after its greeting: reports in, acknowledgements and mail out.
//!
//! Backpressure: the stream reads nothing from its client while two of its reports wait to be stored,
//! while the report budget has no room, while its agent writes more than one agent may, or while a
//! message to the client has not been taken. HTTP/2 flow control then holds the client back.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use svc_pipeline::{
    budget::Room,
    queue::{Origin, Parcel},
};
use svc_proto::{
    ServerMessage,
    contract::{limits::MAX_REPORTS_IN_FLIGHT, new_key::NONCE_BYTES},
    v1::{ChangeKey, Drain, KeyStored},
};
use svc_store::{CloseCause, GapRow, HostId, Range, SessionClose};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::WaitForCancellationFuture;

use super::{Authenticated, Outbox, StreamEnd, inbound::Inbound};
use crate::{
    grpc::{Context, convert, settings, trust},
    session::{EndReason, Inbox, Numbering, PendingReport, SessionKey, drained},
};

/// Agents on a connection that has reached its maximum age reconnect within this time.
const AGE_SPREAD: Duration = Duration::from_secs(10);

/// What a stream acts upon next.
pub(super) enum Event {
    Mail,
    /// The connection has reached its maximum age.
    Aged,
    /// A range, and the room that it takes until the queue has it.
    Report(Box<Range>, Room),
    /// Nothing to do but to check for acknowledgements and to read on.
    Ready,
}

pub(super) struct HeartbeatStream {
    pub(super) context: Arc<Context>,
    pub(super) session: SessionKey,
    pub(super) host: HostId,
    pub(super) inbox: Arc<Inbox>,
    pub(super) out: Outbox,
    pub(super) numbering: Numbering,
    /// Reports that wait to be committed, oldest first.
    pub(super) in_flight: VecDeque<PendingReport>,
    /// Gaps of rejected samples that no acknowledgement has named yet, in order.
    pub(super) rejected: VecDeque<GapRow>,
    /// The watermark: everything up to this number is committed.
    pub(super) acked: i64,
    /// The highest number that an acknowledgement to the client has carried. Never above `acked`. It is
    /// lower while the commit is newer than the last acknowledgement, while acknowledgements are withheld
    /// because the database view is not fresh, and while rejections remain to be named.
    pub(super) acked_to_client: i64,
    /// Whether an acknowledgement must be sent at the next opportunity: the watermark moved, the client
    /// repeated something that is committed already, or rejections remain to be named.
    pub(super) ack_pending: bool,
    /// What a new key signs on this stream.
    pub(super) nonce: [u8; NONCE_BYTES],
    /// How many were announced.
    pub(super) new_keys: u8,
    /// Nothing is read before this time, because the agent has written too much.
    pub(super) paused_until: Option<Instant>,
    aged: bool,
    /// What to record when the stream ends, and its name in the metrics.
    cause: CloseCause,
    cause_name: &'static str,
}

impl HeartbeatStream {
    pub(super) fn new(
        context: Arc<Context>,
        session: SessionKey,
        host: HostId,
        acked: i64,
        inbox: Arc<Inbox>,
        out: Outbox,
    ) -> Self {
        let now = Instant::now();
        let debt = context.write_limits.debt(session.agent, now);
        let paused_until = (!debt.is_zero()).then(|| now + debt);
        Self {
            context,
            session,
            host,
            inbox,
            out,
            numbering: Numbering::after(acked),
            in_flight: VecDeque::new(),
            rejected: VecDeque::new(),
            acked,
            acked_to_client: acked,
            ack_pending: false,
            nonce: rand::random(),
            new_keys: 0,
            paused_until,
            aged: false,
            // A client that vanishes leaves it so.
            cause: CloseCause::Lost,
            cause_name: CloseCause::Lost.as_str(),
        }
    }

    pub(super) async fn serve(
        &mut self,
        client: &Authenticated,
        inbound: &mut Inbound,
    ) -> StreamEnd {
        let mut closing = pin!(client.peer.closing.cancelled());
        loop {
            let event = self.next_event(closing.as_mut(), inbound).await;
            if let Err(end) = self.act(event).await {
                return end;
            }
        }
    }

    /// Waits for the next event and judges it, but does not act on it. The future of an idle stream is
    /// this one, and it stays small because the states of acting are not part of it.
    async fn next_event(
        &mut self,
        closing: Pin<&mut WaitForCancellationFuture<'_>>,
        inbound: &mut Inbound,
    ) -> Result<Event, StreamEnd> {
        let pause_ends = self.paused_until.unwrap_or_else(Instant::now);
        let reading = self.in_flight.len() < MAX_REPORTS_IN_FLIGHT && self.paused_until.is_none();
        let now = self.context.sessions.now();
        self.inbox.set_reading(reading && !inbound.waits(), now);
        tokio::select! {
            biased;
            () = self.inbox.mail_arrived() => Ok(Event::Mail),
            () = closing, if !self.aged => Ok(Event::Aged),
            () = sleep_until(pause_ends), if self.paused_until.is_some() => {
                self.paused_until = None;
                Ok(Event::Ready)
            }
            read = inbound.next(), if reading => self.receive(read?),
        }
    }

    async fn act(&mut self, event: Result<Event, StreamEnd>) -> Result<(), StreamEnd> {
        match event? {
            Event::Mail => self.read_mail().await?,
            Event::Aged => self.drain_aged().await,
            Event::Report(range, _room) => self.enqueue(*range).await?,
            Event::Ready => {}
        }
        self.acknowledge().await;
        Ok(())
    }

    /// Waits until the queue has the range. Mail is served meanwhile; the client is not read.
    async fn enqueue(&mut self, range: Range) -> Result<(), StreamEnd> {
        self.inbox.set_reading(false, self.context.sessions.now());
        let last_seq = range.last_seq;
        let origin = Origin {
            epoch: self.session.epoch,
            instance: *self.context.instance.borrow(),
        };
        let mut push = pin!(self.context.queue.push(Parcel { range, origin }));
        let ticket = loop {
            tokio::select! {
                biased;
                ticket = &mut push => break ticket,
                () = self.inbox.mail_arrived() => {
                    self.read_mail().await?;
                    self.acknowledge().await;
                }
            }
        };
        self.in_flight.push_back(PendingReport {
            last_seq,
            ticket,
            since: Instant::now(),
        });
        self.inbox
            .set_oldest_pending(self.in_flight.front().copied());
        // The commit may have been announced before this report was noted as pending.
        self.ack_pending |= self.acked >= last_seq;
        Ok(())
    }

    async fn read_mail(&mut self) -> Result<(), StreamEnd> {
        let mail = self.inbox.take();
        if let Some(reason) = mail.end {
            return Err(StreamEnd::Ended(reason));
        }
        if let Some(jwt) = mail.credential {
            let credential = convert::credential(jwt);
            self.out.send(ServerMessage::Credential(credential)).await;
        }
        if let Some(slot) = mail.drain {
            self.drain(slot).await;
        }
        if let Some(offer) = mail.offer {
            let base_url = &self.context.agents.download_base_url;
            let offer = convert::offer(&offer, base_url.as_str());
            self.out.send(ServerMessage::Offer(offer)).await;
        }
        if mail.change_key {
            let change = ServerMessage::ChangeKey(ChangeKey {});
            self.out.send(change).await;
        }
        if let Some(stored) = mail.key_stored {
            let stored = KeyStored {
                key: stored.key.to_vec(),
                refused: stored.refused,
            };
            self.out.send(ServerMessage::KeyStored(stored)).await;
        }
        if let Some(wanted) = mail.settings {
            let settings = settings::message(&self.context.agents, Some(&wanted));
            self.out.send(ServerMessage::Settings(settings)).await;
        }
        if let Some(list) = mail.trust {
            let anchors = trust::anchors(&list);
            self.out.send(ServerMessage::Trust(anchors)).await;
        }
        if let Some(cell) = mail.move_to {
            let to = convert::move_to(&cell);
            self.out.send(ServerMessage::MoveTo(to)).await;
        }
        self.note_refused(mail.refused);
        if mail.acked_seq > self.acked {
            let more = mail.acked_seq.abs_diff(self.acked);
            self.context.pipeline.acknowledged.inc_by(more);
            self.acked = mail.acked_seq;
            self.ack_pending = true;
        }
        Ok(())
    }

    /// Asks the agent to reconnect on a new connection. An instance that stops drains its agents itself.
    async fn drain_aged(&mut self) {
        self.aged = true;
        if !self.context.stop.is_cancelled() {
            self.drain(AGE_SPREAD.mul_f64(rand::random())).await;
        }
    }

    /// From here on, a client that leaves without Goodbye counts as drained, not as lost.
    async fn drain(&mut self, slot: Duration) {
        self.set_cause(drained(slot));
        let reconnect_after = prost_types::Duration::try_from(slot).ok();
        let drain = Drain { reconnect_after };
        self.out.send(ServerMessage::Drain(drain)).await;
    }

    /// Notes why the stream ends, where that is known.
    pub(super) fn close_as(&mut self, end: &StreamEnd) {
        match end {
            StreamEnd::ClientGone => {}
            StreamEnd::Moved => self.set_cause(CloseCause::Moved),
            StreamEnd::Goodbye(None) => self.set_cause(CloseCause::Goodbye),
            StreamEnd::Goodbye(Some(back_in)) => {
                self.set_cause(CloseCause::Updating { back_in: *back_in });
            }
            StreamEnd::Refused(_) => {
                self.cause = CloseCause::Lost;
                self.cause_name = "violation";
            }
            StreamEnd::Ended(reason) => {
                self.set_cause(reason.cause());
                self.cause_name = match reason {
                    EndReason::Replaced => "replaced",
                    EndReason::Silent => "silent",
                    EndReason::Unstored => "unstored",
                    _ => self.cause_name,
                };
            }
        }
    }

    /// An agent that was heard until its connection broke gets time to come back. One that had been silent is not there.
    fn cause_at_end(&self) -> CloseCause {
        let timing = &self.context.timing;
        let silent = self
            .context
            .sessions
            .now()
            .saturating_sub(self.inbox.last_message_at());
        let heard = Duration::from_millis(silent) <= timing.heard_within(self.inbox.interval());
        match self.cause_name == CloseCause::Lost.as_str() && heard {
            true => self.cause.with_grace(timing.lost_grace),
            false => self.cause,
        }
    }

    fn set_cause(&mut self, cause: CloseCause) {
        self.cause = cause;
        self.cause_name = cause.as_str();
    }
}

/// However the stream ends, by return, by panic or because its client vanished: its session leaves the
/// table and is closed in the database.
impl Drop for HeartbeatStream {
    fn drop(&mut self) {
        let sessions = &self.context.sessions;
        sessions.remove(self.session);
        sessions.metrics.streams.dec();
        sessions.metrics.closed(self.cause_name);
        let (SessionKey { agent, epoch }, cause) = (self.session, self.cause_at_end());
        tracing::debug!(agent.id = %agent, cause = cause.as_str(), "a stream ended");
        self.context.closer.close(SessionClose {
            agent_id: agent,
            epoch,
            cause,
        });
    }
}
