//! Reports that reach the consumer before an earlier report of their agent.

use std::time::Duration;

use anyhow::Result;
use svc_pipeline::queue::Parcel;
use svc_store::{AgentId, GapKind, GapRow, HostId, Range};
use svc_testkit::{ActiveAgent, metric_becomes};
use uuid::Uuid;

use super::{queue, without_consumer};
use crate::queue::ORIGIN;

/// How long a report may be put back: some thirty times.
const PATIENCE: Duration = Duration::from_secs(8);

/// A report waits in the queue for longer than a report may be put back, as in an outage. Its predecessor comes later.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_a_report_out_of_order_is_put_back_and_stored() -> Result<()> {
    let (site, server) = without_consumer().await?;
    let agent = ActiveAgent::new(&site, server.grpc, 1).await?;
    let host = site.psql("SELECT host_id FROM agents").await?;
    let queue = queue(&site).await?;
    let (agent_id, host_id) = (
        AgentId(agent.id.parse::<Uuid>()?),
        HostId(host.parse::<Uuid>()?),
    );
    let report = |seq| Parcel {
        range: Range {
            agent_id,
            host_id,
            first_seq: seq,
            last_seq: seq,
            samples: vec![],
            gaps: vec![GapRow {
                first_seq: seq,
                last_seq: seq,
                kind: GapKind::Declared,
                reason: "test".into(),
            }],
        },
        origin: ORIGIN,
    };
    queue.push(report(2)).await;
    tokio::time::sleep(PATIENCE + Duration::from_secs(1)).await;
    let consumer = site.instance();
    let consumer = consumer.timing(|timing| timing.order_patience = PATIENCE);
    let consumer = consumer.start().await?;
    metric_becomes(consumer.http, "queue_put_back_total", |n| n >= 3.0).await?;
    site.expect("SELECT acked_seq FROM agent_state", "0")
        .await?;
    queue.push(report(1)).await;
    site.becomes("SELECT acked_seq FROM agent_state", "2").await
}
