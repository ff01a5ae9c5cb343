//! Everything that all agents of a worker process share: plan, orders, statistics, encoded messages.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use rustls_pki_types::ServerName;
use svc_proto::{
    ClientMessage,
    v1::{AgentInfo, Goodbye, HeartbeatRequest},
};
use tokio::sync::{Semaphore, watch};

use crate::{
    identity::Seed,
    plan::{Orders, Plan},
    stats::Stats,
    tls::TlsBase,
    wire,
};

/// The heartbeat interval until the service sends its own.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
/// Longer than any run: an agent that has only registered then waits for the order to leave.
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
    pub(super) openings: Semaphore,
    stats: Mutex<Stats>,
    began: Instant,
    goodbye: Bytes,
}

impl Shared {
    pub fn new(plan: Plan) -> anyhow::Result<Shared> {
        let name = ServerName::try_from(plan.server_name.clone()).context("the server's name")?;
        let goodbye = ClientMessage::Goodbye(Goodbye {
            reason: "the fleet stops".into(),
            back_within: None,
        });
        Ok(Shared {
            orders: watch::Sender::new(Orders::default()),
            seed: Seed::of(&plan.seed.0),
            tls: TlsBase::new(plan.ca_pem.as_deref())?,
            name,
            vitals: wire::vitals(),
            run_id: uuid::Uuid::new_v4().to_string(),
            openings: Semaphore::new(plan.openings.unwrap_or(Semaphore::MAX_PERMITS)),
            stats: Mutex::default(),
            began: Instant::now(),
            goodbye: wire::framed(&HeartbeatRequest {
                message: Some(goodbye),
            }),
            plan,
        })
    }

    /// Changes the statistics. The lock is never contended: one thread runs all agents of the process.
    pub fn stats<T>(&self, change: impl FnOnce(&mut Stats) -> T) -> T {
        change(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Microseconds since the worker started.
    pub(super) fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn interval(&self) -> Duration {
        self.plan.interval.unwrap_or(DEFAULT_INTERVAL)
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
