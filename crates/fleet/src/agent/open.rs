//! From nothing to a welcomed stream: connect, register where there is no JWT, say Hello.

use std::sync::Arc;

use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use svc_proto::v1::{
    AgentStatus, HeartbeatRequest, HeartbeatResponse, Hello, HostFacts, RegisterRequest,
    RegisterResponse, Welcome, heartbeat_request::Message as Say,
    heartbeat_response::Message as Hear,
};
use tokio::time::{Instant, timeout};

use super::{
    Agent, CONNECT_PATIENCE,
    link::{self, Line, Link, Route},
    lost::Lost,
};
use crate::{
    identity::{identity, machine},
    plan::Task,
    wire::{framed, millis, timestamp},
};

pub const REGISTER: &str = "/svc.ingest.v1.IngestService/Register";
pub const HEARTBEAT: &str = "/svc.ingest.v1.IngestService/Heartbeat";

impl Agent {
    pub(super) async fn open(&mut self) -> Result<Box<Link>, Lost> {
        let mut line = Line::open(&self.route()?).await?;
        let bearer = match self.bearer.clone() {
            Some(bearer) => bearer,
            None => self.register(&mut line).await?,
        };
        let hello = self.hello(machine(self.shared.seed, self.number), &self.shared.run_id);
        let mut call = line.call(HEARTBEAT, Some(&bearer), hello, false).await?;
        let said: HeartbeatResponse = line.next(&mut call).await?;
        let Some(Hear::Welcome(welcome)) = said.message else {
            return Err(Lost::Closed);
        };
        self.welcomed(&welcome);
        Ok(Box::new(line.into_link(call)))
    }

    /// Registers over the same connection that the stream will use.
    async fn register(&mut self, line: &mut Line) -> Result<HeaderValue, Lost> {
        let began = Instant::now();
        let request = framed(&RegisterRequest {
            enrolment_token: self.shared.plan.token.0.clone(),
            host: Some(machine(self.shared.seed, self.number)),
            agent: Some(self.shared.info()),
            successor_key: vec![],
        });
        let mut call = line.call(REGISTER, None, request, true).await?;
        let answer: RegisterResponse = line.next(&mut call).await?;
        let (AgentStatus::Active, Some(credential)) = (answer.status(), &answer.credential) else {
            return Err(Lost::NotAdmitted);
        };
        self.agent_id = answer.agent_id.as_str().into();
        self.shared.tally(|tally| {
            tally.counts.registered += 1;
            tally.clocks.enrol.record_duration(began.elapsed());
        });
        let bearer = bearer(&credential.jwt).ok_or(Lost::NotAdmitted)?;
        self.bearer = Some(bearer.clone());
        Ok(bearer)
    }

    fn welcomed(&mut self, welcome: &Welcome) {
        if let Some(server_time) = &welcome.server_time
            && self.corrects_its_clock()
        {
            self.correction_ms = millis(server_time) - self.own_clock_ms();
        }
        if let Some(settings) = &welcome.settings {
            self.settings(settings);
        }
        self.agent_id = welcome.agent_id.as_str().into();
        let now_us = self.shared.now_us();
        let settled = self.ledger.welcomed(welcome.acked_seq, now_us);
        self.settled(&settled, 0);
    }

    pub(super) fn hello(&self, host: HostFacts, run_id: &str) -> bytes::Bytes {
        let hello = Say::Hello(Hello {
            agent: Some(self.shared.info()),
            host: Some(host),
            run_id: format!("{run_id}-{}", self.number),
            sent_at: Some(timestamp(self.own_clock_ms())),
        });
        framed(&HeartbeatRequest {
            message: Some(hello),
        })
    }

    pub(super) fn route(&mut self) -> Result<Route, Lost> {
        let key = self.key()?;
        let plan = &self.shared.plan;
        let target = plan.targets[self.turn % plan.targets.len()];
        let many_sources = plan.is_local() && target.is_ipv4();
        Ok(Route {
            target,
            source: many_sources.then(|| self.source()),
            name: self.shared.name.clone(),
            tls: self.shared.tls.with(&key),
        })
    }

    /// Handshakes use up ports: they go round all addresses.
    fn source(&self) -> std::net::IpAddr {
        match self.shared.plan.task {
            Task::Handshake => link::source(self.turn as u32 * link::AGENTS_PER_ADDRESS),
            Task::Report | Task::Enrol => link::source(self.number),
        }
    }

    /// Made when it is first needed, so that a fleet's keys are made while it ramps up.
    fn key(&mut self) -> Result<Arc<CertifiedKey>, Lost> {
        if self.key.is_none() {
            self.key = identity(self.shared.seed, self.number).ok();
        }
        self.key.clone().ok_or(Lost::NoIdentity)
    }

    /// What agents do that hold no stream; gives the time of the next.
    pub(super) async fn errand(&mut self) -> Instant {
        let errand = Box::pin(timeout(CONNECT_PATIENCE, self.one_errand()));
        match errand.await.unwrap_or(Err(Lost::Slow)) {
            Ok(next) => next,
            Err(lost) => self.lost(&lost),
        }
    }

    async fn one_errand(&mut self) -> Result<Instant, Lost> {
        let route = self.route()?;
        if self.shared.plan.task == Task::Handshake {
            link::secured(&route).await?;
            self.turn += 1;
            self.shared.tally(|tally| tally.counts.handshakes += 1);
            return Ok(Instant::now());
        }
        let mut line = Line::open(&route).await?;
        self.register(&mut line).await?;
        Ok(Instant::now() + super::shared::NEVER)
    }

    /// The time as this agent's machine has it.
    pub(super) fn own_clock_ms(&self) -> i64 {
        let skew = self.skew().map_or(0, |skew| skew.ahead_seconds * 1000);
        Timestamp::now().as_millisecond() + skew
    }

    pub(super) fn clock_ms(&self) -> i64 {
        self.own_clock_ms() + self.correction_ms
    }

    fn corrects_its_clock(&self) -> bool {
        self.skew().is_none_or(|skew| skew.corrects)
    }

    fn skew(&self) -> Option<crate::plan::Skew> {
        let skew = self.shared.plan.skew?;
        let skewed = f64::from(self.shared.plan.agents) * skew.share;
        (f64::from(self.number) < skewed).then_some(skew)
    }
}

/// Marked as sensitive, so that HTTP/2 keeps it out of its tables.
pub(super) fn bearer(jwt: &str) -> Option<HeaderValue> {
    let mut bearer = HeaderValue::try_from(format!("Bearer {jwt}")).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}
