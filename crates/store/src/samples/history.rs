//! Writes `host_metrics` by COPY, the cheapest way to insert many rows. COPY cannot skip
//! duplicates; that is not necessary, because only rows above the watermark get here.

use std::borrow::Cow;

use tokio_postgres::types::{Json, Type};

use super::Range;
use crate::{error::StoreError, tx::Tx};

const COPY: &str = "-- samples_append
    COPY host_metrics (host_id, agent_id, sampled_at, seq, cpu_percent, load_1m, load_5m, load_15m,
                       memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
                       uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, disks)
    FROM STDIN (FORMAT binary)";

/// The types of the columns of `COPY`.
fn types() -> Vec<Type> {
    let keys = vec![Type::UUID, Type::UUID, Type::TIMESTAMPTZ, Type::INT8];
    let (floats, integers) = (vec![Type::FLOAT8; 4], vec![Type::INT8; 8]);
    [keys, floats, integers, vec![Type::JSONB]].concat()
}

impl Tx {
    pub(super) async fn history_copy(&self, ranges: &[Cow<'_, Range>]) -> Result<(), StoreError> {
        if ranges.iter().all(|range| range.samples.is_empty()) {
            return Ok(());
        }
        let mut copy = self.copy_in(COPY, &types()).await?;
        for range in ranges {
            for sample in &range.samples {
                copy.write(&[
                    &range.host_id.0,
                    &range.agent_id.0,
                    &sample.sampled_at,
                    &sample.seq,
                    &sample.cpu_percent,
                    &sample.load[0],
                    &sample.load[1],
                    &sample.load[2],
                    &sample.memory_used_bytes,
                    &sample.memory_total_bytes,
                    &sample.swap_used_bytes,
                    &sample.swap_total_bytes,
                    &sample.uptime_seconds,
                    &sample.process_count,
                    &sample.network_rx_bytes,
                    &sample.network_tx_bytes,
                    &Json(&sample.disks),
                ])
                .await?;
            }
        }
        copy.finish().await?;
        Ok(())
    }
}
