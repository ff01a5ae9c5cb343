//! From no connection to a welcomed stream: connect, register if there is no JWT, send Hello.

use std::sync::Arc;

use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::{HEARTBEAT_PATH, REGISTER_PATH},
    v1::{
        AgentStatus, HeartbeatRequest, HeartbeatResponse, Hello, RegisterRequest, RegisterResponse,
        Welcome,
    },
};
use tokio::time::{Instant, timeout};

use super::{
    Agent, CONNECT_TIMEOUT,
    connection::{Connection, Route, source_address},
    failure::Failure,
    heartbeat_call::HeartbeatCall,
    shared::NEVER,
};
use crate::{
    identity::{identity, machine},
    wire::{bearer, framed, millis, timestamp},
};

impl Agent {
    pub(super) async fn open(&mut self) -> Result<Box<HeartbeatCall>, Failure> {
        let mut connection = Connection::open(&self.route()?).await?;
        let bearer = match self.bearer.clone() {
            Some(bearer) => bearer,
            None => self.register(&mut connection).await?,
        };
        let call = connection.call(HEARTBEAT_PATH, Some(&bearer), self.hello(), false);
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
        if let Some(server_time) = &welcome.server_time {
            self.correction_ms = millis(server_time) - Timestamp::now().as_millisecond();
        }
        if let Some(settings) = &welcome.settings {
            self.apply_settings(settings);
        }
        self.agent_id = welcome.agent_id.as_str().into();
        let now_us = self.shared.now_us();
        let settled = self.ledger.welcomed(welcome.acked_seq, now_us);
        self.count_settled(&settled, 0);
    }

    fn hello(&self) -> bytes::Bytes {
        let hello = ClientMessage::Hello(Hello {
            agent: Some(self.shared.info()),
            host: Some(machine(self.shared.seed, self.number)),
            run_id: format!("{}-{}", self.shared.run_id, self.number),
            sent_at: Some(timestamp(Timestamp::now().as_millisecond())),
            update: None,
            ..Hello::default()
        });
        framed(&HeartbeatRequest {
            message: Some(hello),
        })
    }

    fn route(&mut self) -> Result<Route, Failure> {
        let key = self.key()?;
        let plan = &self.shared.plan;
        let target = plan.targets[self.next_target % plan.targets.len()];
        let several_sources = plan.is_local() && target.is_ipv4();
        Ok(Route {
            target,
            source: several_sources.then(|| source_address(self.number)),
            name: self.shared.name.clone(),
            tls: self.shared.tls.with_key(&key),
        })
    }

    /// Derived at first use, so that a fleet computes its keys during the ramp.
    fn key(&mut self) -> Result<Arc<CertifiedKey>, Failure> {
        if self.key.is_none() {
            self.key = identity(self.shared.seed, self.number).ok();
        }
        self.key.clone().ok_or(Failure::NoIdentity)
    }

    /// Registers, without a stream. Returns the time of the next attempt.
    pub(super) async fn enrol(&mut self) -> Instant {
        let attempt = Box::pin(timeout(CONNECT_TIMEOUT, self.try_enrol()));
        match attempt.await.unwrap_or(Err(Failure::Timeout)) {
            Ok(()) => Instant::now() + NEVER,
            Err(failure) => self.retry_at(&failure),
        }
    }

    async fn try_enrol(&mut self) -> Result<(), Failure> {
        let mut connection = Connection::open(&self.route()?).await?;
        self.register(&mut connection).await.map(drop)
    }

    pub(super) fn clock_ms(&self) -> i64 {
        Timestamp::now().as_millisecond() + self.correction_ms
    }
}
