//! One heartbeat session: reports out, acknowledgements in, and on a Drain a new stream
//! before the old one is left.
//!
//! [`Session::serve`] alternates between two steps. `send` sends as many reports as the
//! protocol and the pace allow. `step` then waits for the first event: a message of the
//! service, the end of a move to another instance, a new sample, the end of a pause, or
//! the request to stop. Every event is followed by another `send`, so no event has to
//! say whether it made room for a report.
//!
//! At most two reports wait for their acknowledgement, because the service reads no more.
//! A full report means that the agent sends old samples. A pause follows it, so that a
//! fleet that returns after an outage does not send everything at once. Samples are sent
//! in the order of their numbers, so fresh ones wait behind old ones; the pause is
//! short compared with the time that one report covers.

mod cell;
mod drain;
mod pace;

use std::{collections::VecDeque, ops::RangeInclusive, pin::Pin, time::Duration};

use jiff::Timestamp;
use svc_proto::{
    ServerMessage,
    contract::{Action, limits},
    v1::{NewKey, Rejection, Settings, TrustAnchors, UpdateState, Welcome},
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until, timeout},
};

use super::{Agent, Next, cell::cell_name, keys::Greeting};
use crate::{
    anchors::Trusted,
    caller::CallError,
    recorder::last_number,
    release,
    spool::SpoolError,
    status::Enrolment,
    wire::{CallFailure, Credential, HeartbeatCall, duration, system_time},
};
use cell::{ToCell, cell_event};
use pace::Pace;

/// Whatever interval the service sets, the agent samples within these bounds.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// A stream that is being opened.
type PendingMove = Pin<Box<dyn Future<Output = Moved> + Send>>;
type Moved = Result<(HeartbeatCall, Welcome), CallError>;

enum SessionEnd {
    Stopped,
    Failed(CallError),
}

impl<E: Into<CallError>> From<E> for SessionEnd {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Agent {
    pub(super) async fn heartbeat(&mut self, credential: Credential) -> Next {
        let address = self.addresses.current().clone();
        let caller = self.caller.clone().living_in(self.cell_state());
        let stop = self.stop.clone();
        let opening = caller.open(&address, &credential);
        let (call, welcome) = match stop.run_until_cancelled(opening).await {
            None => return Next::Stop,
            Some(Err(error)) => return self.after_failure(&error),
            Some(Ok(opened)) => opened,
        };
        let opened = Instant::now();
        let mut session = Session::new(self, call);
        let end = match session.welcomed(welcome).await {
            Ok(()) => session.serve().await,
            Err(end) => end,
        };
        self.reset_backoff_if_settled(opened);
        match end {
            SessionEnd::Stopped => Next::Stop,
            SessionEnd::Failed(error) => self.after_failure(&error),
        }
    }
}

struct Session<'a> {
    agent: &'a mut Agent,
    /// `None` after the stream ended while the agent moves to another instance.
    call: Option<HeartbeatCall>,
    pending_move: Option<PendingMove>,
    greeting: Greeting,
    /// A new key that is to be announced.
    new_key: Option<NewKey>,
    to_cell: Option<ToCell>,
    /// The last number that was sent on the current stream.
    sent: u64,
    /// The last number of each report that waits for its acknowledgement.
    in_flight: VecDeque<u64>,
    pace: Pace,
    updates: watch::Receiver<UpdateState>,
    trusted: watch::Receiver<Trusted>,
}

impl<'a> Session<'a> {
    fn new(agent: &'a mut Agent, call: HeartbeatCall) -> Self {
        Self {
            pace: Pace::new(agent.timing.backfill, Instant::now()),
            call: Some(call),
            pending_move: None,
            greeting: Greeting::default(),
            new_key: None,
            to_cell: None,
            sent: 0,
            in_flight: VecDeque::new(),
            updates: agent.updates.state(),
            trusted: agent.caller.anchors().trusted(),
            agent,
        }
    }

    /// Takes over the watermark, the time and the settings of the service. Everything
    /// above the watermark is sent again on this stream, because the acknowledgements of
    /// a former stream can no longer arrive.
    async fn welcomed(&mut self, welcome: Welcome) -> Result<(), SessionEnd> {
        let acked = welcome.acked_seq;
        let server_time = system_time(welcome.server_time);
        self.agent.recorder.welcome(acked, server_time).await?;
        self.agent.lives_here();
        self.agent.save_time();
        self.agent.refused_since = None;
        (self.sent, self.in_flight) = (acked, VecDeque::new());
        tracing::info!(
            agent.id = welcome.agent_id,
            address = self.agent.address(),
            acked_seq = acked,
            "connected"
        );
        self.agent.connected();
        self.agent.updates.welcomed(self.agent.may_restart());
        self.show_trust();
        self.agent.board.change(|status| {
            status.enrolment = Enrolment::Active;
            status.message = None;
        });
        self.greeting = Greeting::of(&welcome);
        self.new_key = self.agent.key_welcomed(&self.greeting);
        if let Some(settings) = welcome.settings {
            self.apply_settings(&settings);
        }
        Ok(())
    }

    async fn serve(&mut self) -> SessionEnd {
        loop {
            let step = match self.send().await {
                Ok(()) => self.step().await,
                Err(end) => Err(end),
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    /// Waits for the next event and handles it. Every branch is cancel-safe: a branch that
    /// loses the race has taken nothing that a later call would miss.
    async fn step(&mut self) -> Result<(), SessionEnd> {
        let stop = self.agent.stop.clone();
        let recorder = self.agent.recorder.clone();
        let may_send = self.call.is_some() && self.has_room();
        let pause = self.pace.until(Instant::now());
        let is_settled = self.to_cell.is_some() && self.is_settled();
        tokio::select! {
            () = stop.cancelled() => {
                self.goodbye().await;
                Err(SessionEnd::Stopped)
            }
            message = next_message(&mut self.call) => match message {
                Ok(message) => {
                    self.handle(message);
                    Ok(())
                }
                Err(failure) => self.stream_ended(failure),
            },
            moved = arrival(&mut self.pending_move) => self.moved(moved).await,
            event = cell_event(&mut self.to_cell, is_settled) => self.cell_step(event).await,
            Ok(()) = self.updates.changed() => Ok(()),
            Ok(()) = self.trusted.changed() => {
                self.show_trust();
                Ok(())
            }
            () = recorder.changed(), if may_send && pause.is_none() => Ok(()),
            () = sleep_until(pause.unwrap_or_else(Instant::now)), if may_send && pause.is_some() => Ok(()),
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < limits::MAX_REPORTS_IN_FLIGHT && !self.is_leaving()
    }

    /// Sends reports until the limit of unacknowledged reports, the pace or the end of
    /// the spool is reached.
    async fn send(&mut self) -> Result<(), SessionEnd> {
        if let Some(call) = &mut self.call {
            call.tell(&self.updates.borrow_and_update());
            self.new_key.take_if(|new_key| call.announce(new_key));
            call.tell_settings(&self.agent.settings.state());
            call.tell_trust(&self.trusted.borrow().state);
            call.tell_cell(cell_name(&self.agent.state), &self.agent.cell_problem);
        }
        while let Some(call) = &self.call
            && self.has_room()
            && self.pace.until(Instant::now()).is_none()
        {
            let report = match self.agent.recorder.report(self.sent).await {
                // Old samples are on a disk that does not answer, and newer ones must not
                // overtake them. An empty report shows that the agent lives.
                Err(SpoolError::NoAnswer) => {
                    call.alive();
                    return Ok(());
                }
                report => report?,
            };
            let Some(report) = report else {
                return Ok(());
            };
            let Some(last) = last_number(&report) else {
                return Ok(());
            };
            self.pace.sent(report.samples.len(), Instant::now());
            // This does not wait: the call's queue holds as many messages as may be in flight.
            if let Err(failure) = call.report(report).await {
                tracing::debug!(error = %failure, "a report was not sent: its stream has ended");
                return Ok(()); // The next message of the stream is the reason.
            }
            self.sent = last;
            self.agent.highest_sent = self.agent.highest_sent.max(last);
            self.in_flight.push_back(last);
        }
        Ok(())
    }

    fn handle(&mut self, message: ServerMessage) {
        match message {
            ServerMessage::Ack(ack) => self.acknowledged(ack.up_to_seq, &ack.rejected),
            ServerMessage::Settings(settings) => self.apply_settings(&settings),
            ServerMessage::Drain(drain) => {
                self.drain(duration(drain.reconnect_after).unwrap_or_default());
            }
            ServerMessage::Credential(credential) => {
                tracing::debug!("the service sent a new JWT");
                self.agent.take_credential(&credential.into());
            }
            ServerMessage::Offer(offer) => self.agent.updates.offered(offer),
            ServerMessage::ChangeKey(_) => self.new_key = self.agent.announce(&self.greeting),
            ServerMessage::KeyStored(stored) if self.agent.key_stored(&stored) => {
                self.move_to_new_key();
            }
            ServerMessage::KeyStored(_) => {}
            ServerMessage::Trust(list) => self.trust_announced(list),
            ServerMessage::MoveTo(order) => self.asked_to_move(&order),
            ServerMessage::Welcome(_) => {} // `HeartbeatCall::message` never returns it.
        }
    }

    /// The disk may stall, so another thread waits for it. What has changed is told by `trusted`.
    fn trust_announced(&self, list: TrustAnchors) {
        if let Some(call) = &self.call {
            let (anchors, dir) = (self.agent.caller.anchors().clone(), self.agent.dir.clone());
            if anchors.announced(list, call.server()) {
                spawn_blocking(move || anchors.take(&dir));
            }
        }
    }

    fn show_trust(&mut self) {
        let shown = self.trusted.borrow_and_update().shown.clone();
        self.agent.board.change_rare(|rare| rare.trust = shown);
    }

    fn acknowledged(&mut self, up_to: u64, rejected: &[Rejection]) {
        if let Some(first) = rejected.first() {
            tracing::warn!(
                samples = rejected.len(),
                first.seq = first.seq,
                first.reason = first.reason,
                "the service rejected samples"
            );
        }
        while self.in_flight.pop_front_if(|last| *last <= up_to).is_some() {}
        self.agent.recorder.acked(up_to);
        self.agent.updates.acknowledged(self.agent.may_restart());
        self.agent
            .board
            .change(|status| status.last_acknowledged_at = Some(Timestamp::now()));
    }

    fn apply_settings(&mut self, settings: &Settings) {
        let interval = duration(settings.heartbeat_interval);
        if let Some(interval) = interval.filter(|interval| !interval.is_zero()) {
            let interval = interval.clamp(*INTERVALS.start(), *INTERVALS.end());
            self.agent.set_interval(interval);
        }
        if let Some(given) = &settings.agent {
            self.agent.take_settings(given);
        }
        let notice = settings.release.as_ref().and_then(release::notice);
        if let Some(news) = notice.as_ref().filter(|_| notice != self.agent.noticed) {
            tracing::info!(
                version = news.version,
                url = news.url,
                "a newer agent version is available"
            );
        }
        self.agent.noticed.clone_from(&notice);
        self.agent.board.change(|status| status.update = notice);
    }

    async fn goodbye(&mut self) {
        if let Some(call) = self.call.take() {
            let back_within = self.agent.updates.restart();
            let reason = match back_within {
                Some(_) => "update",
                None => "stopped",
            };
            let goodbye = call.goodbye(reason, back_within);
            let sent = timeout(self.agent.timing.goodbye, goodbye).await;
            tracing::debug!(received = matches!(sent, Ok(Ok(()))), "Goodbye was sent");
        }
    }

    /// A stream may end before the agent has moved to another instance. The session then
    /// waits for the move without a stream, unless the failure concerns the agent itself:
    /// such a refusal would meet it on the other instance as well.
    fn stream_ended(&mut self, failure: CallFailure) -> Result<(), SessionEnd> {
        let is_expected = matches!(
            failure.action,
            Action::Reconnect | Action::RetryLater | Action::YieldToReplacement
        );
        if self.pending_move.is_none() || !is_expected {
            return Err(failure.into());
        }
        self.agent.disconnected(failure.to_string());
        self.call = None;
        Ok(())
    }
}

/// Completes with the pending move; pending forever without one.
async fn arrival(pending_move: &mut Option<PendingMove>) -> Moved {
    match pending_move {
        Some(pending_move) => pending_move.await,
        None => std::future::pending().await,
    }
}

/// Pending forever without a stream.
async fn next_message(call: &mut Option<HeartbeatCall>) -> Result<ServerMessage, CallFailure> {
    match call {
        Some(call) => call.message().await,
        None => std::future::pending().await,
    }
}
