//! What a message of the client means for its stream: reports become ranges of sequence numbers.

use svc_pipeline::{budget::Room, queue::weight};
use svc_proto::{ClientMessage, contract::GOODBYE_MOVED, v1::Report};
use svc_store::{GapKind, GapRow};
use tokio::time::Instant;

use super::{
    Rules, StreamEnd, entries,
    inbound::Read,
    stream::{Event, HeartbeatStream},
    violation,
};
use crate::{
    grpc::{convert, settings, trust},
    session::{Said, settings_said},
};

impl HeartbeatStream {
    pub(super) fn receive(&mut self, read: Read) -> Result<Event, StreamEnd> {
        let (request, room) = match read {
            Read::Message(request, room) => (request, room),
            Read::Wait => return Ok(Event::Ready),
            Read::End => return Err(StreamEnd::ClientGone),
        };
        self.inbox.message_arrived(self.context.sessions.now());
        self.inbox.heard(self.context.clock.now());
        let event = match request.message {
            Some(ClientMessage::Report(report)) => self.report(report, room)?,
            Some(ClientMessage::Goodbye(goodbye)) if goodbye.reason == GOODBYE_MOVED => {
                return Err(StreamEnd::Moved);
            }
            Some(ClientMessage::Goodbye(goodbye)) => {
                let back_within = convert::back_within(goodbye.back_within);
                return Err(StreamEnd::Goodbye(back_within));
            }
            Some(ClientMessage::Hello(_)) => return Err(violation("Hello came twice")),
            Some(ClientMessage::NewKey(announced)) => self.new_key(&announced)?,
            None => Event::Ready, // A message of a later protocol version.
        };
        self.charge(&event);
        Ok(event)
    }

    /// Pauses the stream if its agent writes faster than one agent may.
    fn charge(&mut self, event: &Event) {
        let rows = match event {
            Event::Report(range, _) => range.samples.len() + range.gaps.len(),
            _ => 0,
        };
        let (agent, now) = (self.session.agent, Instant::now());
        let pause = self.context.write_limits.charge(agent, rows, now);
        self.paused_until = (!pause.is_zero()).then(|| now + pause);
    }

    fn report(&mut self, mut report: Report, mut room: Room) -> Result<Event, StreamEnd> {
        if let Some(update) = report.update.take() {
            let (update, agent) = (convert::update(update), self.session.agent);
            self.inbox.take_offers();
            self.context.updates.put(agent, update, Said::InReport);
        }
        if let Some(state) = report.settings.take() {
            let (said, agent) = (settings::said(state), self.session.agent);
            settings_said(&self.inbox, &self.context.settings, agent, said);
        }
        if let Some(trust) = report.trust.take() {
            let (trust, agent) = (trust::report(trust), self.session.agent);
            self.inbox.take_trust();
            self.context.trust.put(agent, Some(trust));
        }
        if let Some(cell) = report.cell.take() {
            let problem = convert::problem(&cell.problem);
            self.context.moves.problem(self.session.agent, problem);
        }
        let rules = Rules {
            now: self.context.clock.now(),
            retention: self.context.retention,
        };
        let sent = report.samples.len();
        let entries = entries(report, &rules).map_err(|error| violation(&error.to_string()))?;
        let Some(range) = self.numbering.take(self.session.agent, self.host, entries) else {
            self.count_duplicates(sent);
            self.ack_pending = true; // A repetition is acknowledged again.
            return Ok(Event::Ready);
        };
        let rejected = range
            .gaps
            .iter()
            .filter(|gap| gap.kind == GapKind::Rejected);
        let rejected_count: i64 = rejected.clone().map(GapRow::len).sum();
        self.rejected.extend(rejected.cloned());
        let taken = range.samples.len() + usize::try_from(rejected_count).unwrap_or(0);
        self.count_duplicates(sent.saturating_sub(taken));
        room.shrink_to(weight(&range));
        Ok(Event::Report(Box::new(range), room))
    }

    fn count_duplicates(&self, count: usize) {
        self.context.pipeline.duplicates.inc_by(count as u64);
    }
}
