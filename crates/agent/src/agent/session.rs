//! One heartbeat stream, from its Welcome to its end: reports out, acknowledgements
//! in, and on a Drain a new stream before the old one is left.
//!
//! At most two reports wait for their acknowledgement, as the service reads no more.
//! A full report, which means that old samples are being sent, is followed by a pause:
//! a fleet that comes back after an outage does not come all at once. Order is by
//! number, so the pause is short beside what one report carries.

mod moving;
mod pace;

use std::{collections::VecDeque, ops::RangeInclusive, time::Duration};

use jiff::Timestamp;
use svc_proto::v1::{Rejection, Report, Settings, Welcome};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Agent, Step};
use crate::{
    caller::CallError,
    release,
    wire::{Credential, Heard, Reason, Refusal, Stream, length, time},
};
use moving::Move;
use pace::Pace;

const MAX_IN_FLIGHT: usize = 2;
/// Whatever the service says, samples are not taken more or less often than this.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// Why a session is over.
enum Over {
    Stopped,
    Failed(CallError),
}

impl<E: Into<CallError>> From<E> for Over {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Agent {
    pub(super) async fn heartbeat(&mut self, credential: Credential) -> Step {
        let Some(address) = self.addresses.current().cloned() else {
            return Step::Stopped;
        };
        let caller = self.caller.clone();
        let stop = self.stop.clone();
        let opening = caller.open(&address, &credential);
        let (stream, welcome) = match stop.run_until_cancelled(opening).await {
            None => return Step::Stopped,
            Some(Err(error)) => return self.after(&error),
            Some(Ok(opened)) => opened,
        };
        let opened = Instant::now();
        let mut session = Session::new(self, stream);
        let over = match session.welcomed(welcome) {
            Ok(()) => session.serve().await,
            Err(over) => over,
        };
        self.lived_since(opened);
        match over {
            Over::Stopped => Step::Stopped,
            Over::Failed(error) => self.after(&error),
        }
    }
}

struct Session<'a> {
    agent: &'a mut Agent,
    /// None once it has ended while its successor is on its way.
    stream: Option<Stream>,
    moving: Option<Move>,
    /// The last number that was sent on this stream.
    sent: u64,
    /// The last numbers of the reports that wait for their acknowledgement.
    in_flight: VecDeque<u64>,
    pace: Pace,
}

impl<'a> Session<'a> {
    fn new(agent: &'a mut Agent, stream: Stream) -> Self {
        Self {
            pace: Pace::new(agent.timing.backfill, Instant::now()),
            stream: Some(stream),
            moving: None,
            sent: 0,
            in_flight: VecDeque::new(),
            agent,
        }
    }

    /// The numbers, the time and the settings, by the service.
    fn welcomed(&mut self, welcome: Welcome) -> Result<(), Over> {
        let acked = welcome.acked_seq;
        let server_time = time(welcome.server_time);
        self.agent.record.welcome(acked, server_time)?;
        self.agent.keep_time();
        (self.sent, self.in_flight) = (acked, VecDeque::new());
        tracing::info!(
            agent.id = welcome.agent_id,
            address = self.agent.address(),
            acked_seq = acked,
            "connected"
        );
        self.agent.connected();
        self.agent.board.change(|status| {
            status.enrolment = crate::status::Enrolment::Active;
            status.message = None;
        });
        if let Some(settings) = welcome.settings {
            self.heed_settings(&settings);
        }
        Ok(())
    }

    async fn serve(&mut self) -> Over {
        loop {
            let step = match self.send().await {
                Ok(()) => self.step().await,
                Err(over) => Err(over),
            };
            if let Err(over) = step {
                return over;
            }
        }
    }

    /// The next thing that happens.
    async fn step(&mut self) -> Result<(), Over> {
        let stop = self.agent.stop.clone();
        let record = self.agent.record.clone();
        let room = self.stream.is_some() && self.in_flight.len() < MAX_IN_FLIGHT;
        let pause = self.pace.until(Instant::now());
        tokio::select! {
            () = stop.cancelled() => {
                self.goodbye().await;
                Err(Over::Stopped)
            }
            heard = hear(&mut self.stream) => match heard {
                Ok(heard) => {
                    self.heed(heard);
                    Ok(())
                }
                Err(refusal) => self.left(refusal),
            },
            moved = moving::arrival(&mut self.moving) => self.moved(moved),
            () = record.grown(), if room && pause.is_none() => Ok(()),
            () = sleep_until(pause.unwrap_or_else(Instant::now)), if room && pause.is_some() => Ok(()),
        }
    }

    /// As much as may be on its way now.
    async fn send(&mut self) -> Result<(), Over> {
        while let Some(stream) = &self.stream
            && self.in_flight.len() < MAX_IN_FLIGHT
            && self.pace.until(Instant::now()).is_none()
        {
            let Some(report) = self.agent.record.report(self.sent)? else {
                return Ok(());
            };
            let Some(last) = last_number(&report) else {
                return Ok(());
            };
            self.pace.sent(report.samples.len(), Instant::now());
            // The stream holds two messages, and no more than two are on their way: no wait.
            if let Err(refusal) = stream.report(report).await {
                tracing::debug!(error = %refusal, "a report was not taken: its stream has ended");
                return Ok(()); // What the stream hears says why.
            }
            self.sent = last;
            self.in_flight.push_back(last);
        }
        Ok(())
    }

    fn heed(&mut self, heard: Heard) {
        match heard {
            Heard::Ack { up_to, rejected } => self.acknowledged(up_to, &rejected),
            Heard::Settings(settings) => self.heed_settings(&settings),
            Heard::Drain { reconnect_after } => self.drain(reconnect_after),
            Heard::Credential(credential) => {
                tracing::debug!("a new JWT came");
                self.agent.take_credential(&credential);
            }
        }
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
        while self.in_flight.front().is_some_and(|last| *last <= up_to) {
            self.in_flight.pop_front();
        }
        self.agent.record.acked(up_to);
        self.agent
            .board
            .change(|status| status.last_acknowledged_at = Some(Timestamp::now()));
    }

    fn heed_settings(&mut self, settings: &Settings) {
        let interval = length(settings.heartbeat_interval);
        if let Some(interval) = interval.filter(|interval| !interval.is_zero()) {
            let interval = interval.clamp(*INTERVALS.start(), *INTERVALS.end());
            self.agent.set_interval(interval);
        }
        let notice = settings.release.as_ref().and_then(release::notice);
        if let Some(news) = notice.as_ref().filter(|_| notice != self.agent.noticed) {
            tracing::info!(
                version = news.version,
                url = news.url,
                "a newer agent is to be had"
            );
        }
        self.agent.noticed.clone_from(&notice);
        self.agent.board.change(|status| status.update = notice);
    }

    /// The stream has ended. Where its successor is on its way, that is waited for.
    fn left(&mut self, refusal: Refusal) -> Result<(), Over> {
        let expected = matches!(
            refusal.reason,
            Reason::Lost | Reason::Later | Reason::Replaced
        );
        if self.moving.is_none() || !expected {
            return Err(refusal.into());
        }
        self.agent.disconnected(refusal.to_string());
        self.stream = None;
        Ok(())
    }

    async fn goodbye(&mut self) {
        if let Some(stream) = self.stream.take() {
            let said = timeout(self.agent.timing.goodbye, stream.goodbye("stopped")).await;
            tracing::debug!(heard = matches!(said, Ok(Ok(()))), "goodbye was said");
        }
    }
}

/// A stream that has ended says nothing more.
async fn hear(stream: &mut Option<Stream>) -> Result<Heard, Refusal> {
    match stream {
        Some(stream) => stream.hear().await,
        None => std::future::pending().await,
    }
}

fn last_number(report: &Report) -> Option<u64> {
    let samples = report.samples.last().map(|sample| sample.seq);
    let gaps = report.gaps.iter().map(|gap| gap.last_seq).max();
    samples.max(gaps)
}
