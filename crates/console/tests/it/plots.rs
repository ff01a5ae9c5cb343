//! A host's history as the plots get it.

use anyhow::{Context, Result};
use serde_json::Value;
use svc_store::Role;

use crate::support::{Console, disk, seed_hosts, seed_samples};

#[tokio::test]
async fn gaps_are_null_with_their_reason_and_rollups_serve_long_ranges() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    // Without the samples of 10 minutes, which the agent declared lost.
    seed_samples(&console.site, "web-000", 120, &[40..=60], |sample| {
        sample.cpu_percent = 50.0;
        sample.memory_total_bytes = 2 << 30;
        sample.uptime_seconds = sample.seq;
        sample.network_rx_bytes = 3000 * sample.seq;
        sample.network_tx_bytes = 300 * sample.seq;
        sample.disks = vec![disk("/", 42_000)];
    })
    .await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let series = async |range: &str| -> Result<Value> {
        let path = format!("/hosts/{id}/series?range={range}");
        let body = client.get(&path).await?.body;
        serde_json::from_str(&body).context(body)
    };
    let hour = series("1h").await?;
    assert_eq!(hour["source"], "every sample");
    assert_eq!(hour["gaps"][0]["reason"], "declared: the spool was full");
    let column = |name: &str| hour[name].as_array().unwrap();
    let missing = column("cpu").iter().filter(|value| value.is_null());
    assert_eq!(missing.count(), 1, "one null breaks the line");
    assert_eq!(hour["rx"][1], 100.0);
    assert_eq!(hour["disks"]["/"][0], 42.0);
    for name in ["cpu", "load", "memory", "rx", "tx"] {
        assert_eq!(column(name).len(), column("t").len(), "{name}");
    }
    let week = series("7d").await?;
    assert_eq!(week["source"], "hourly means");
    assert_eq!(week["cpu"][0], 50.0);
    assert_eq!(series("1y").await?["source"], "daily means");
    let unknown = format!("/hosts/{}/series?range=1h", uuid::Uuid::nil());
    assert_eq!(client.status(&unknown).await?, 404);
    Ok(())
}
