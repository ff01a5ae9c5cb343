//! A host's history as the plots get it.

use anyhow::{Context, Result};
use svc_store::Role;

use crate::support::{Console, seed_hosts};

#[tokio::test]
async fn gaps_are_null_with_their_reason_and_rollups_serve_long_ranges() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    console.site.psql("SELECT metrics_partitions_ensure('7 days'); SELECT rollups_partition_ensure(now()); SELECT rollups_partition_ensure(now() - interval '40 hours')").await?;
    // A sample every 30 s of the last hour, without those of 10 minutes, which the agent declared lost.
    console.site.psql(
        "INSERT INTO host_metrics SELECT h.id, now() - make_interval(secs => 30 * (120 - n)), a.id, n, 50, 1, 1, 1, 1::bigint << 30,
                2::bigint << 30, 0, 0, n, 10, n * 3000, n * 300, '[{\"mount_point\": \"/\", \"total_bytes\": 100, \"used_bytes\": 42}]'
           FROM hosts h JOIN agents a ON a.host_id = h.id, generate_series(1, 120) AS n WHERE n NOT BETWEEN 40 AND 60;
         INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason) SELECT id, 40, 60, 'declared', 'the spool was full' FROM agents",
    ).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let series = async |range: &str| -> Result<serde_json::Value> {
        let page = client
            .get(&format!("/hosts/{id}/series?range={range}"))
            .await?;
        serde_json::from_str(&page.body).with_context(|| page.body.clone())
    };
    let hour = series("1h").await?;
    assert_eq!(hour["source"], "every sample");
    assert_eq!(hour["gaps"][0]["reason"], "declared: the spool was full");
    let missing = hour["cpu"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|value| value.is_null());
    assert_eq!(missing.count(), 1, "one null breaks the line");
    assert_eq!(hour["rx"][1], 100.0);
    assert_eq!(hour["disks"]["/"][0], 42.0);
    for column in ["cpu", "load", "memory", "rx", "tx"] {
        assert_eq!(
            hour[column].as_array().unwrap().len(),
            hour["t"].as_array().unwrap().len(),
            "{column}"
        );
    }
    let week = series("7d").await?;
    assert_eq!(week["source"], "hourly means");
    assert_eq!(week["cpu"][0], 50.0);
    assert_eq!(series("1y").await?["source"], "daily means");
    let unknown = format!("/hosts/{}/series?range=1h", uuid::Uuid::nil());
    assert_eq!(client.get(&unknown).await?.status, 404);
    Ok(())
}
