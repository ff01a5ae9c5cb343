//! How full this instance is. The lease carries it into the database, where the web application reads it.

use std::{path::Path, sync::Arc, thread::available_parallelism};

use jiff::Timestamp;
use svc_pipeline::{metrics::PipelineMetrics, queue::QueueUrl};
use svc_store::InstanceLoad;
use tokio::{sync::watch, time::Instant};

use crate::{
    config::{Config, memory_limit},
    session::SessionTable,
    telemetry::ProcessUse,
};

#[derive(Clone, Debug)]
pub struct LoadGauge {
    sessions: Arc<SessionTable>,
    pipeline: PipelineMetrics,
    certificate_expires_at: watch::Receiver<Option<Timestamp>>,
    /// What does not change while the process runs.
    fixed: InstanceLoad,
    /// The processor time at the last reading.
    last: Option<(Instant, f64)>,
}

impl LoadGauge {
    pub fn new(
        config: &Config,
        sessions: Arc<SessionTable>,
        pipeline: PipelineMetrics,
        certificate_expires_at: watch::Receiver<Option<Timestamp>>,
    ) -> Self {
        let queue = &config.queue;
        let own_queue = matches!(queue.url, QueueUrl::Memory);
        let fixed = InstanceLoad {
            max_connections: whole(config.grpc.limits.connections),
            cores: available_parallelism().map_or(1.0, |cores| cores.get() as f64),
            memory_limit_bytes: memory_limit(Path::new("/")).map(whole),
            max_queue_bytes: own_queue.then(|| i64::from(queue.bounds.bytes)),
            heartbeat_seconds: config.agents.heartbeat_interval.as_secs_f64(),
            ..InstanceLoad::default()
        };
        Self {
            sessions,
            pipeline,
            certificate_expires_at,
            fixed,
            last: None,
        }
    }

    /// The load now; processors since the last reading.
    pub fn read(&mut self) -> InstanceLoad {
        let (queue_bytes, queue_oldest_seconds) = self.pipeline.queued();
        let mut load = InstanceLoad {
            agents: whole(self.sessions.len()),
            queue_bytes,
            queue_oldest_seconds,
            certificate_expires_at: *self.certificate_expires_at.borrow(),
            ..self.fixed.clone()
        };
        if let Some(used) = ProcessUse::read() {
            load.memory_bytes = used.resident_bytes as i64;
            load.cores_used = self.cores_since_last(used.cpu_seconds);
        }
        load
    }

    fn cores_since_last(&mut self, cpu_seconds: f64) -> f64 {
        let now = Instant::now();
        let before = self.last.replace((now, cpu_seconds));
        before.map_or(0.0, |(at, seconds)| {
            (cpu_seconds - seconds) / (now - at).as_secs_f64().max(0.001)
        })
    }
}

fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
