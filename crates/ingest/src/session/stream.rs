//! One heartbeat stream, from its Hello to its end: the protocol's rules in order.
//!
//! It reads no further while two of its reports wait to be stored, while its agent
//! reports faster than it may, or while what it said has not been taken: the client's
//! own flow control then holds it back.

mod acknowledging;
mod greeting;

use std::{collections::VecDeque, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use jiff::Timestamp;
use svc_proto::v1::{
    AgentRelease, Credential, Drain, HeartbeatRequest, Report, Settings, Welcome,
    heartbeat_request::Message as Said, heartbeat_response::Message as Saying,
};
use svc_store::{AgentId, CloseCause, GapKind, GapRow, HostId, Range, SessionClose};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::{Status, Streaming};
use uuid::Uuid;

use super::{
    Awaited, Closer, Conversation, Ending, Inbox, Numbering, Opener, Outbox, Rules, Sessions,
    inbox::drained,
};
use crate::{
    clock::DatabaseClock,
    config::{Agents, Timing},
    grpc::Refusal,
    listener::Peer,
    queue::{Origin, Parcel, Queue},
    rate::Rate,
    telemetry::PipelineMetrics,
    watch::Watch,
};

const REPORTS: Rate = Rate::new(Duration::from_millis(500), 20);
const MAX_IN_FLIGHT: usize = 2;
/// A connection that has reached its age is left within this.
const AGE_SPREAD: Duration = Duration::from_secs(10);

/// Who opened the stream.
#[derive(Clone, Debug)]
pub struct Authenticated {
    pub agent: AgentId,
    pub jwt_expires_at: Timestamp,
    pub peer: Peer,
}

/// What every stream of the instance shares.
#[derive(Debug)]
pub struct StreamContext {
    pub sessions: Arc<Sessions>,
    pub opener: Opener,
    pub closer: Arc<Closer>,
    pub queue: Queue,
    /// The id of this instance, which consumers are to tell what they commit.
    pub instance: watch::Receiver<Uuid>,
    pub pipeline: PipelineMetrics,
    pub watch: Arc<Watch>,
    pub clock: DatabaseClock,
    pub agents: Agents,
    pub retention: Duration,
    pub timing: Timing,
}

/// Why a stream is over.
enum Over {
    /// The client is gone: there is nobody to tell.
    Gone,
    Goodbye,
    Refused(Refusal),
    Ended(Ending),
}

/// What a stream has to act upon.
enum Event {
    Mail,
    /// The connection is old.
    Aged,
    Report(Box<Range>),
    /// Something may be said, or read, that could not before.
    Ready,
}

struct Stream {
    context: Arc<StreamContext>,
    agent: AgentId,
    host: HostId,
    epoch: i64,
    inbox: Arc<Inbox>,
    out: Outbox,
    numbering: Numbering,
    /// The reports that wait to be stored.
    in_flight: VecDeque<Awaited>,
    /// Gaps of rejected samples that the agent has not been told of.
    rejected: VecDeque<GapRow>,
    acked: i64,
    /// How much of that the agent was told.
    told: i64,
    /// Whether the agent is to be told what is acknowledged.
    owed: bool,
    reports_full_at: Instant,
    slowed_until: Option<Instant>,
    /// Whether the connection has reached its age.
    aged: bool,
    cause: CloseCause,
    /// The cause, as the metrics name it.
    ending: &'static str,
}

/// A stream, to be run by its response's body. A panic ends this stream alone.
pub(crate) fn converse(
    context: Arc<StreamContext>,
    who: Authenticated,
    inbound: Streaming<HeartbeatRequest>,
) -> Conversation {
    Conversation::new(|out| async move {
        // Boxed, because a future that is awaited here would have its room twice.
        let talk = Box::pin(talk(&context, &who, inbound, &out));
        let over = AssertUnwindSafe(talk).catch_unwind().await;
        let over = over.unwrap_or_else(|_| {
            tracing::error!(agent.id = %who.agent, "a stream's handler panicked");
            Over::Refused(Refusal::Internal)
        });
        farewell(&context, &out, over).await;
    })
}

async fn talk(
    context: &Arc<StreamContext>,
    who: &Authenticated,
    mut inbound: Streaming<HeartbeatRequest>,
    out: &Outbox,
) -> Over {
    // Boxed: what it needs is large, and soon over.
    match Box::pin(greeting::greet(context, who, &mut inbound, out)).await {
        Err(over) => over,
        Ok(mut stream) => {
            let over = stream.serve(who, &mut inbound).await;
            stream.leave(&over);
            over
        }
    }
}

impl Stream {
    async fn serve(
        &mut self,
        who: &Authenticated,
        inbound: &mut Streaming<HeartbeatRequest>,
    ) -> Over {
        loop {
            let event = self.next_event(who, inbound).await;
            if let Err(over) = self.act(event).await {
                return over;
            }
        }
    }

    /// What happens next, judged but not acted upon: so little is held while nothing happens.
    async fn next_event(
        &mut self,
        who: &Authenticated,
        inbound: &mut Streaming<HeartbeatRequest>,
    ) -> Result<Event, Over> {
        let wait_until = self.slowed_until.unwrap_or_else(Instant::now);
        let reading = self.in_flight.len() < MAX_IN_FLIGHT && self.slowed_until.is_none();
        self.inbox.listen(reading, self.context.sessions.now());
        tokio::select! {
            biased;
            () = self.inbox.mail_arrived() => Ok(Event::Mail),
            () = who.peer.leaving.cancelled(), if !self.aged => Ok(Event::Aged),
            () = sleep_until(wait_until), if self.slowed_until.is_some() => {
                self.slowed_until = None;
                Ok(Event::Ready)
            }
            message = inbound.message(), if reading => self.hear(message),
        }
    }

    async fn act(&mut self, event: Result<Event, Over>) -> Result<(), Over> {
        match event? {
            Event::Mail => self.read_mail().await?,
            Event::Aged => self.age_drain().await,
            Event::Report(range) => self.enqueue(*range).await?,
            Event::Ready => {}
        }
        self.acknowledge().await;
        Ok(())
    }

    fn hear(&mut self, message: Result<Option<HeartbeatRequest>, Status>) -> Result<Event, Over> {
        let request = match message {
            Ok(Some(request)) => request,
            Ok(None) => return Err(Over::Gone),
            Err(status) => return Err(undecodable(&status)),
        };
        self.inbox.hear(self.context.sessions.now());
        match request.message {
            Some(Said::Report(report)) => self.report(report),
            Some(Said::Goodbye(_)) => Err(Over::Goodbye),
            Some(Said::Hello(_)) => Err(violation("Hello came twice")),
            None => Ok(Event::Ready), // A message of a later version.
        }
    }

    fn report(&mut self, report: Report) -> Result<Event, Over> {
        let now = Instant::now();
        if let Err(wait) = REPORTS.take(&mut self.reports_full_at, now) {
            self.slowed_until = Some(now + wait);
        }
        let rules = Rules {
            now: self.context.clock.now(),
            retention: self.context.retention,
        };
        let sent = report.samples.len();
        let taken = self.numbering.take(self.agent, self.host, report, &rules);
        let Some(range) = taken.map_err(|error| violation(&error.to_string()))? else {
            self.count_duplicates(sent);
            self.owed = true; // A repetition is acknowledged again.
            return Ok(Event::Ready);
        };
        let rejected = range
            .gaps
            .iter()
            .filter(|gap| gap.kind == GapKind::Rejected);
        let missed: i64 = rejected.clone().map(GapRow::len).sum();
        self.rejected.extend(rejected.cloned());
        let taken = range.samples.len() + usize::try_from(missed).unwrap_or(0);
        self.count_duplicates(sent.saturating_sub(taken));
        Ok(Event::Report(Box::new(range)))
    }

    fn count_duplicates(&self, count: usize) {
        self.context.pipeline.duplicates.inc_by(count as u64);
    }

    /// Waits until the queue has it, and reads nothing but its mail meanwhile.
    async fn enqueue(&mut self, range: Range) -> Result<(), Over> {
        self.inbox.listen(false, self.context.sessions.now());
        let last_seq = range.last_seq;
        let origin = Origin {
            epoch: self.epoch,
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
        self.in_flight.push_back(Awaited {
            last_seq,
            ticket,
            since: Instant::now(),
        });
        self.inbox.awaits(self.in_flight.front().copied());
        // What was committed before this was noted has been told already.
        self.owed |= self.acked >= last_seq;
        Ok(())
    }

    async fn read_mail(&mut self) -> Result<(), Over> {
        let mail = self.inbox.take();
        if let Some(ending) = mail.ending {
            return Err(Over::Ended(ending));
        }
        if let Some(jwt) = mail.credential {
            let expires_at = Some(wire_time(jwt.expires_at));
            self.out
                .say(Saying::Credential(Credential {
                    jwt: jwt.text,
                    expires_at,
                }))
                .await;
        }
        if let Some(slot) = mail.drain {
            self.drain(slot).await;
        }
        self.note_refused(mail.refused);
        if mail.acked_seq > self.acked {
            let more = mail.acked_seq.abs_diff(self.acked);
            self.context.pipeline.acknowledged.inc_by(more);
            self.acked = mail.acked_seq;
            self.owed = true;
        }
        Ok(())
    }

    /// The connection is old: come back on a new one. A stopping instance tells its agents itself.
    async fn age_drain(&mut self) {
        self.aged = true;
        if !self.context.watch.is_stopping() {
            self.drain(AGE_SPREAD.mul_f64(rand::random())).await;
        }
    }

    /// Who was asked to leave, and does so without a word, has not been lost.
    async fn drain(&mut self, slot: Duration) {
        self.close_as(drained(slot));
        let reconnect_after = prost_types::Duration::try_from(slot).ok();
        self.out.say(Saying::Drain(Drain { reconnect_after })).await;
    }

    fn welcome(&self) -> Welcome {
        let agents = &self.context.agents;
        let base = agents.download_base_url.as_str();
        let interval =
            prost_types::Duration::try_from(agents.heartbeat_interval).unwrap_or_default();
        Welcome {
            agent_id: self.agent.to_string(),
            server_time: Some(wire_time(self.context.clock.now())),
            settings: Some(Settings {
                heartbeat_interval: Some(interval),
                release: Some(AgentRelease {
                    version: agents.latest_version.clone().unwrap_or_default(),
                    download_base_url: base.trim_end_matches('/').to_owned(),
                }),
            }),
            acked_seq: self.acked.cast_unsigned(),
        }
    }

    /// Notes why it ends, where that is known.
    fn leave(&mut self, over: &Over) {
        match over {
            Over::Gone => {}
            Over::Goodbye => self.close_as(CloseCause::Goodbye),
            Over::Refused(_) => {
                self.close_as(CloseCause::Lost);
                self.ending = "violation";
            }
            Over::Ended(ending) => {
                self.close_as(ending.cause());
                self.ending = match ending {
                    Ending::Replaced => "replaced",
                    Ending::Silent => "silent",
                    Ending::Unstored => "unstored",
                    _ => self.ending,
                };
            }
        }
    }

    fn close_as(&mut self, cause: CloseCause) {
        self.cause = cause;
        self.ending = cause.as_str();
    }
}

/// Out of the table, and its end to the database, however it ended.
impl Drop for Stream {
    fn drop(&mut self) {
        self.context.sessions.remove(self.agent, self.epoch);
        self.context.sessions.metrics.streams.dec();
        self.context.sessions.metrics.closed(self.ending);
        let (agent_id, epoch, cause) = (self.agent, self.epoch, self.cause);
        tracing::debug!(agent.id = %agent_id, cause = cause.as_str(), "a stream ended");
        self.context.closer.close(SessionClose {
            agent_id,
            epoch,
            cause,
        });
    }
}

/// The last word, if anybody listens: OK after Goodbye, a refusal otherwise.
async fn farewell(context: &StreamContext, out: &Outbox, over: Over) {
    let refusal = match over {
        Over::Gone | Over::Goodbye => return,
        Over::Refused(refusal) => {
            context.sessions.metrics.refused(refusal.reason());
            refusal
        }
        Over::Ended(ending) => ending.into(),
    };
    out.end(refusal.into()).await;
}

fn violation(what: &str) -> Over {
    Over::Refused(Refusal::ProtocolViolation(what.to_owned()))
}

/// A stream that breaks is its client's end; one that does not decode is its client's fault.
fn undecodable(status: &Status) -> Over {
    match status.code() {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => {
            Over::Refused(Refusal::MessageTooLarge)
        }
        tonic::Code::Internal | tonic::Code::InvalidArgument => {
            violation("a message does not decode")
        }
        _ => Over::Gone,
    }
}

fn wire_time(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}
