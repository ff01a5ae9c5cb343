//! The settings of the metrics queue, which the configuration fills in.

use std::{path::PathBuf, time::Duration};

use super::{Bounds, NatsServers};

#[derive(Clone, Debug)]
pub struct QueueSettings {
    pub url: QueueUrl,
    pub nats_creds: Option<PathBuf>,
    /// CA certificates for the NATS servers; the system's if `None`.
    pub nats_ca: Option<PathBuf>,
    /// Whether this process consumes the queue too.
    pub consume: bool,
    /// Bounds of the in-process queue. No variable sets them; tests shrink them.
    pub bounds: Bounds,
    /// How often to look for messages that NATS skips, while nothing is delivered. No variable sets it; tests shrink it.
    pub skip_check: Duration,
}

#[derive(Clone, Debug)]
pub enum QueueUrl {
    /// The queue in this process.
    Memory,
    Nats(NatsServers),
}
