//! The sweep: ends the streams of instances that were lost, and of agents that did
//! not come back from a drain. Any instance does it, any number at once, but only
//! with its own lease in hand: one whose lease has lapsed cannot judge others.

use svc_store::{Store, StoreError, Swept};
use uuid::Uuid;

use crate::{config::Timing, telemetry::SessionMetrics};

pub(super) async fn pass(
    store: &Store,
    me: Uuid,
    timing: &Timing,
    metrics: &SessionMetrics,
) -> Result<(), StoreError> {
    let swept = store.sessions_sweep(me, timing.sweep_grace()).await?;
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
