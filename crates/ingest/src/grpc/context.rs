//! What the handlers of `Register` and `Heartbeat` share: one value, made once when the service starts.

use std::{sync::Arc, time::Duration};

use svc_pipeline::{budget::ReportBudget, metrics::PipelineMetrics, queue::Queue};
use svc_store::AgentId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::write_limits::WriteLimits;
use crate::{
    changes::ChangeFeed,
    clock::DatabaseClock,
    config::{Agents, Timing},
    enrol::{Admission, Enrolment, Issuer},
    freshness::Freshness,
    rate::Keyed,
    session::{
        Closer, MoveBoard, Opener, Pins, SessionTable, SettingsReports, TrustReports, UpdateReports,
    },
    signing::Keyring,
};

#[derive(Debug)]
pub struct Context {
    pub keys: Arc<Keyring>,
    pub issuer: Issuer,
    pub enrolment: Enrolment,
    /// What a registration has to pass before it begins.
    pub admission: Admission,
    pub changes: Arc<ChangeFeed>,
    /// How often an agent may open a stream.
    pub openings: Keyed<AgentId>,
    pub pins: Arc<Pins>,
    pub sessions: Arc<SessionTable>,
    pub opener: Opener,
    /// What agents say about their updates.
    pub updates: Arc<UpdateReports>,
    /// What agents say about their settings.
    pub settings: Arc<SettingsReports>,
    /// What agents say they trust.
    pub trust: Arc<TrustReports>,
    /// Which agents belong to other cells, and why they do not move.
    pub moves: Arc<MoveBoard>,
    pub closer: Arc<Closer>,
    pub write_limits: WriteLimits,
    /// Room for reports that are not in the queue yet.
    pub budget: Arc<ReportBudget>,
    pub queue: Queue,
    /// The current id of this instance, to which consumers address their commit hints.
    pub instance: watch::Receiver<Uuid>,
    pub freshness: Arc<Freshness>,
    pub clock: DatabaseClock,
    pub pipeline: PipelineMetrics,
    /// What a Welcome announces to agents.
    pub agents: Agents,
    /// How long samples are kept: older ones are rejected.
    pub retention: Duration,
    pub timing: Timing,
    pub stop: CancellationToken,
}
