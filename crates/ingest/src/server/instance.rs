//! What the parts of a started instance share, and how each of them is made from it.

use std::sync::Arc;

use svc_pipeline::{
    budget::ReportBudget,
    consumer::{Acks, Consumer, DepthGauge},
    export::Export,
    metrics::PipelineMetrics,
    queue::Queue,
};
use svc_store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    changes::{ChangeFeed, Listen},
    clock::DatabaseClock,
    config::Config,
    enrol::{Admission, Enrolment, Issuer},
    freshness::Freshness,
    grpc::{self, Context, WriteLimits},
    health::Health,
    maintenance::{
        Compaction, FleetPictures, FleetReport, HostExpiry, Maintenance, Reinstalls, Rollouts,
    },
    session::{
        AckBackstop, Closer, HintListener, Keys, MoveBoard, Moves, Offers, Opener, Pins,
        SessionTable, SettingsPart, SettingsReports, TrustPass, TrustReports, UpdateReports,
        Upkeep,
    },
    signing::Keyring,
    telemetry::FleetMetrics,
};

pub(super) struct Instance {
    pub config: Config,
    pub store: Store,
    /// Connects as the owner of the tables.
    pub owner: Store,
    pub health: Health,
    pub sessions: Arc<SessionTable>,
    pub updates: Arc<UpdateReports>,
    pub settings: Arc<SettingsReports>,
    pub trust: Arc<TrustReports>,
    pub moves: Arc<MoveBoard>,
    pub pipeline: PipelineMetrics,
    pub fleet: FleetMetrics,
    pub export: Export,
    pub queue: Queue,
    pub keys: Arc<Keyring>,
    pub closer: Arc<Closer>,
    pub freshness: Arc<Freshness>,
    pub clock: DatabaseClock,
    /// The current id of this instance. It changes when the lease is lost and claimed again.
    pub id: watch::Receiver<Uuid>,
}

impl Instance {
    /// How many streams without an authenticated agent may be open, of each kind: registrations that wait
    /// for a decision, and health watches.
    pub fn max_unauthenticated_streams(&self) -> usize {
        (self.config.grpc.limits.connections / 10).max(1)
    }

    pub fn changes(&self) -> Arc<ChangeFeed> {
        ChangeFeed::new(
            self.store.clone(),
            self.sessions.clone(),
            self.freshness.clone(),
            self.id.clone(),
            self.max_unauthenticated_streams(),
        )
    }

    pub fn listen(&self, changes: &Arc<ChangeFeed>) -> Listen {
        Listen {
            store: self.store.clone(),
            url: self.config.database.listen_url(),
            changes: changes.clone(),
        }
    }

    pub fn grpc_context(
        &self,
        admission: Admission,
        issuer: Issuer,
        changes: Arc<ChangeFeed>,
        opener: Opener,
        pins: Arc<Pins>,
        stop: CancellationToken,
    ) -> Arc<Context> {
        let timing = self.config.timing;
        let waiting = &self.pipeline.reports_waiting;
        Arc::new(Context {
            keys: self.keys.clone(),
            issuer,
            enrolment: Enrolment::new(self.store.clone(), &timing),
            admission,
            changes,
            openings: grpc::openings(),
            pins,
            sessions: self.sessions.clone(),
            updates: self.updates.clone(),
            settings: self.settings.clone(),
            trust: self.trust.clone(),
            moves: self.moves.clone(),
            opener,
            closer: self.closer.clone(),
            write_limits: WriteLimits::default(),
            budget: Arc::new(ReportBudget::new(self.config.grpc.report_budget, waiting)),
            queue: self.queue.clone(),
            instance: self.id.clone(),
            freshness: self.freshness.clone(),
            clock: self.clock.clone(),
            pipeline: self.pipeline.clone(),
            agents: self.config.agents.clone(),
            retention: self.config.retention.metrics,
            timing,
            stop,
        })
    }

    pub fn upkeep(&self, issuer: Issuer) -> Upkeep {
        Upkeep {
            sessions: self.sessions.clone(),
            issuer,
            clock: self.clock.clone(),
            freshness: self.freshness.clone(),
            timing: self.config.timing,
        }
    }

    pub fn offers(&self) -> Offers {
        Offers::new(
            self.store.clone(),
            self.sessions.clone(),
            self.updates.clone(),
            Keys::new(self.store.clone(), self.sessions.clone(), self.id.clone()),
            self.clock.clone(),
            self.config.timing.offers,
        )
    }

    pub fn settings(&self) -> SettingsPart {
        SettingsPart::new(
            self.store.clone(),
            self.sessions.clone(),
            self.settings.clone(),
            self.config.timing.offers,
            self.config.timing.heartbeat_interval,
        )
    }

    pub fn trust_pass(&self) -> TrustPass {
        TrustPass::new(
            self.store.clone(),
            self.sessions.clone(),
            self.trust.clone(),
            self.config.timing.offers,
        )
    }

    pub fn moves(&self) -> Moves {
        Moves {
            store: self.store.clone(),
            sessions: self.sessions.clone(),
            board: self.moves.clone(),
            instance: self.id.clone(),
            period: self.config.timing.offers,
        }
    }

    pub fn rollouts(&self) -> Rollouts {
        Rollouts {
            store: self.store.clone(),
            clock: self.clock.clone(),
            instance: self.id.clone(),
            period: self.config.timing.rollouts,
            dark_after: self.config.timing.dark_after,
        }
    }

    pub fn backstop(&self) -> AckBackstop {
        AckBackstop {
            sessions: self.sessions.clone(),
            store: self.store.clone(),
            queue: self.queue.clone(),
            timing: self.config.timing,
        }
    }

    /// None where the configuration leaves consuming to other processes.
    pub fn consumers(&self) -> Vec<Consumer> {
        if !self.config.queue.consume {
            return Vec::new();
        }
        let acks = || Acks::for_queue(&self.queue, &self.sessions);
        Consumer::for_all_shards(
            &self.queue,
            &self.store,
            acks,
            &self.pipeline,
            &self.export,
            self.config.timing.consumer_waits(),
        )
    }

    /// The in-process queue needs no hints: its consumer delivers to the table itself.
    pub fn hint_listener(&self) -> Option<HintListener> {
        match &self.queue {
            Queue::InProcess(_) => None,
            Queue::JetStream(jetstream) => Some(HintListener {
                hints: jetstream.hints(),
                sessions: self.sessions.clone(),
                store: self.store.clone(),
                instance: self.id.clone(),
            }),
        }
    }

    pub fn depth_gauge(&self) -> DepthGauge {
        DepthGauge {
            queue: self.queue.clone(),
            pipeline: self.pipeline.clone(),
        }
    }

    pub fn maintenance(&self) -> Maintenance {
        Maintenance {
            store: self.store.clone(),
            owner: self.owner.clone(),
            direct: self.config.database.direct_url(),
            retention: self.config.retention,
        }
    }

    /// None where no setting asks for it.
    pub fn host_expiry(&self) -> Option<HostExpiry> {
        let offline_for = self.config.retention.offline_hosts?;
        Some(HostExpiry {
            store: self.store.clone(),
            offline_for,
            period: self.config.timing.host_expiry,
        })
    }

    pub fn compaction(&self) -> Compaction {
        Compaction {
            store: self.store.clone(),
            owner: self.owner.clone(),
            direct: self.config.database.direct_url(),
            retention: self.config.retention.metrics,
            pipeline: self.pipeline.clone(),
            period: self.config.timing.compaction,
        }
    }

    pub fn fleet_report(&self) -> FleetReport {
        FleetReport {
            store: self.store.clone(),
            metrics: self.fleet.clone(),
            instance: self.id.clone(),
            retention: self.config.retention.metrics,
            period: self.config.timing.fleet_gauges,
        }
    }

    pub fn fleet_pictures(&self) -> FleetPictures {
        FleetPictures {
            store: self.store.clone(),
            period: self.config.timing.fleet_pictures,
        }
    }

    pub fn reinstalls(&self, changes: &Arc<ChangeFeed>) -> Reinstalls {
        let quiet = self.config.timing.reinstall_quiet;
        Reinstalls {
            store: self.store.clone(),
            changes: changes.clone(),
            // An agent that has waited for the whole of it can wait for another twentieth.
            period: (quiet / 20).max(self.config.timing.poll),
            quiet,
        }
    }
}
