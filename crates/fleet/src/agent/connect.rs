//! From no connection to a welcomed stream: connect, register if there is no JWT, send Hello.

use std::{net::IpAddr, sync::Arc};

use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::{HEARTBEAT_PATH, REGISTER_PATH},
    v1::{
        AgentStatus, HeartbeatRequest, HeartbeatResponse, Hello, HostFacts, RegisterRequest,
        RegisterResponse, Welcome,
    },
};
use tokio::time::{Instant, timeout};

use super::{
    Agent, CONNECT_TIMEOUT,
    connection::{self, Connection, Route},
    failure::Failure,
    heartbeat_call::HeartbeatCall,
    shared::NEVER,
};
use crate::{
    identity::{identity, machine},
    plan::{Skew, Task},
    wire::{bearer, framed, millis, timestamp},
};

impl Agent {
    pub(super) async fn open(&mut self) -> Result<Box<HeartbeatCall>, Failure> {
        let mut connection = Connection::open(&self.route()?).await?;
        let bearer = match self.bearer.clone() {
            Some(bearer) => bearer,
            None => self.register(&mut connection).await?,
        };
        let hello = self.hello(machine(self.shared.seed, self.number), &self.shared.run_id);
        let call = connection.call(HEARTBEAT_PATH, Some(&bearer), hello, false);
        let mut call = call.await?;
        let response: HeartbeatResponse = connection.next(&mut call).await?;
        let Some(ServerMessage::Welcome(welcome)) = response.message else {
            return Err(Failure::Closed);
        };
        self.welcomed(&welcome);
        Ok(Box::new(HeartbeatCall::new(connection, call)))
    }

    /// Registers over the connection that the stream will use.
    async fn register(&mut self, connection: &mut Connection) -> Result<HeaderValue, Failure> {
        let began = Instant::now();
        let request = framed(&RegisterRequest {
            enrolment_token: self.shared.plan.token.0.clone(),
            host: Some(machine(self.shared.seed, self.number)),
            agent: Some(self.shared.info()),
            successor_key: vec![],
        });
        let mut call = connection.call(REGISTER_PATH, None, request, true).await?;
        let response: RegisterResponse = connection.next(&mut call).await?;
        let not_admitted = Failure::NotAdmitted(response.status());
        let (AgentStatus::Active, Some(credential)) = (response.status(), &response.credential)
        else {
            return Err(not_admitted);
        };
        self.agent_id = response.agent_id.as_str().into();
        self.shared.stats(|stats| {
            stats.counts.registered += 1;
            stats.latencies.enrol.record_duration(began.elapsed());
        });
        let bearer = bearer(&format!("Bearer {}", credential.jwt)).ok_or(not_admitted)?;
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
            self.apply_settings(settings);
        }
        self.agent_id = welcome.agent_id.as_str().into();
        let now_us = self.shared.now_us();
        let settled = self.ledger.welcomed(welcome.acked_seq, now_us);
        self.count_settled(&settled, 0);
    }

    pub(super) fn hello(&self, host: HostFacts, run_id: &str) -> bytes::Bytes {
        let hello = ClientMessage::Hello(Hello {
            agent: Some(self.shared.info()),
            host: Some(host),
            run_id: format!("{run_id}-{}", self.number),
            sent_at: Some(timestamp(self.own_clock_ms())),
        });
        framed(&HeartbeatRequest {
            message: Some(hello),
        })
    }

    pub(super) fn route(&mut self) -> Result<Route, Failure> {
        let key = self.key()?;
        let plan = &self.shared.plan;
        let target = plan.targets[self.next_target % plan.targets.len()];
        let several_sources = plan.is_local() && target.is_ipv4();
        Ok(Route {
            target,
            source: several_sources.then(|| self.source_address()),
            name: self.shared.name.clone(),
            tls: self.shared.tls.with_key(&key),
        })
    }

    /// An agent that only does handshakes uses up ports: it cycles through all addresses.
    fn source_address(&self) -> IpAddr {
        let number = match self.shared.plan.task {
            Task::Handshake => self.next_target as u32 * connection::AGENTS_PER_ADDRESS,
            Task::Report | Task::Enrol => self.number,
        };
        connection::source_address(number)
    }

    /// Derived at first use, so that a fleet computes its keys during the ramp.
    fn key(&mut self) -> Result<Arc<CertifiedKey>, Failure> {
        if self.key.is_none() {
            self.key = identity(self.shared.seed, self.number).ok();
        }
        self.key.clone().ok_or(Failure::NoIdentity)
    }

    /// Registers or does one handshake, without a stream. Returns the time of the next attempt.
    pub(super) async fn run_once(&mut self) -> Instant {
        let attempt = Box::pin(timeout(CONNECT_TIMEOUT, self.try_once()));
        match attempt.await.unwrap_or(Err(Failure::Timeout)) {
            Ok(next) => next,
            Err(failure) => self.retry_at(&failure),
        }
    }

    async fn try_once(&mut self) -> Result<Instant, Failure> {
        let route = self.route()?;
        if self.shared.plan.task == Task::Handshake {
            connection::connect_tls(&route).await?;
            self.next_target += 1;
            self.shared.stats(|stats| stats.counts.handshakes += 1);
            return Ok(Instant::now());
        }
        let mut connection = Connection::open(&route).await?;
        self.register(&mut connection).await?;
        Ok(Instant::now() + NEVER)
    }

    /// The time by the clock of the agent's machine, which may be wrong.
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

    fn skew(&self) -> Option<Skew> {
        let skew = self.shared.plan.skew?;
        let skewed = f64::from(self.shared.plan.agents) * skew.share;
        (f64::from(self.number) < skewed).then_some(skew)
    }
}
