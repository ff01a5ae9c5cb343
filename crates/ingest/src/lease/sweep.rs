//! The sweep: fences instances whose lease has expired, and marks as offline the agents of fenced instances
//! and the agents that did not come back from a drain. Any instance sweeps, any number at once.
//!
//! The agents of a lost instance may be many, so they are ended in batches. What is left when the lease must
//! be renewed again is left to the next pass: a sweep never costs the sweeper its own lease.

use svc_store::{Store, StoreError, Swept};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{config::Timing, telemetry::SessionMetrics};

pub(super) async fn pass(
    store: &Store,
    own_id: Uuid,
    timing: &Timing,
    metrics: &SessionMetrics,
) -> Result<(), StoreError> {
    let (grace, until) = (timing.sweep_grace(), Instant::now() + timing.lease_renewal);
    let fenced = store.leases_fence(own_id, grace).await?;
    if fenced > 0 {
        metrics.fenced.inc_by(fenced.unsigned_abs().into());
        tracing::warn!(instances = fenced, "lost instances were fenced");
    }
    loop {
        let swept = store.sessions_sweep(own_id, grace).await?;
        report(swept, metrics);
        if swept == Swept::default() || Instant::now() >= until {
            return Ok(());
        }
    }
}

fn report(swept: Swept, metrics: &SessionMetrics) {
    let Swept { lost, undrained } = swept;
    if swept != Swept::default() {
        let agents = (lost + undrained).unsigned_abs();
        metrics.swept.inc_by(agents.into());
        tracing::warn!(agents = lost, undrained, "agents were swept");
    }
}
