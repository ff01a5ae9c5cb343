//! The sweep: fences instances whose lease has expired, and marks as offline the agents of fenced instances
//! and the agents that did not come back from a drain. Any instance sweeps, any number at once.

use svc_store::{Store, StoreError, Swept};
use uuid::Uuid;

use crate::{config::Timing, telemetry::SessionMetrics};

pub(super) async fn pass(
    store: &Store,
    own_id: Uuid,
    timing: &Timing,
    metrics: &SessionMetrics,
) -> Result<(), StoreError> {
    let swept = store.sessions_sweep(own_id, timing.sweep_grace()).await?;
    if swept != Swept::default() {
        let Swept {
            fenced,
            lost,
            undrained,
        } = swept;
        metrics.fenced.inc_by(fenced.unsigned_abs().into());
        metrics
            .swept
            .inc_by((lost + undrained).unsigned_abs().into());
        tracing::warn!(
            instances = fenced,
            agents = lost,
            undrained,
            "lost instances and agents were swept"
        );
    }
    Ok(())
}
