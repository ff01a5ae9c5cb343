//! What all agents of a process share: the plan, the orders, the counters and the prepared bytes.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use rustls_pki_types::ServerName;
use svc_proto::v1::{AgentInfo, Goodbye, HeartbeatRequest, heartbeat_request::Message as Say};
use tokio::sync::watch;

use crate::{
    identity::Seed,
    plan::{Orders, Plan},
    tally::Tally,
    tls::TlsBase,
    wire,
};

/// Until the service has said how often it wants to hear of its agents.
const INTERVAL: Duration = Duration::from_secs(30);
/// Longer than any run: an agent that has done its errand waits to be told to leave.
pub(super) const NEVER: Duration = Duration::from_hours(24);

#[derive(Debug)]
pub struct Shared {
    pub plan: Plan,
    pub orders: watch::Sender<Orders>,
    pub(super) seed: Seed,
    pub(super) tls: TlsBase,
    pub(super) name: ServerName<'static>,
    pub(super) vitals: Bytes,
    pub(super) run_id: String,
    tally: Mutex<Tally>,
    began: Instant,
    goodbye: Bytes,
}

impl Shared {
    pub fn new(plan: Plan) -> anyhow::Result<Shared> {
        let name = ServerName::try_from(plan.server_name.clone()).context("the server's name")?;
        let goodbye = Say::Goodbye(Goodbye {
            reason: "the fleet stops".into(),
        });
        Ok(Shared {
            orders: watch::Sender::new(Orders::default()),
            seed: Seed::of(&plan.seed.0),
            tls: TlsBase::new(plan.ca_pem.as_deref())?,
            name,
            vitals: wire::vitals(),
            run_id: uuid::Uuid::new_v4().to_string(),
            tally: Mutex::default(),
            began: Instant::now(),
            goodbye: wire::framed(&HeartbeatRequest {
                message: Some(goodbye),
            }),
            plan,
        })
    }

    /// The process has one thread that runs agents, so nobody ever waits here.
    pub fn tally<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn interval(&self) -> Duration {
        self.plan.interval.unwrap_or(INTERVAL)
    }

    pub(super) fn goodbye(&self) -> Bytes {
        self.goodbye.clone()
    }

    pub(super) fn info(&self) -> AgentInfo {
        AgentInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            capabilities: vec![],
        }
    }
}
