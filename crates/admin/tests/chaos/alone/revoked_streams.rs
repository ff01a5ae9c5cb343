//! How soon a revocation ends the streams of its agent, and whether a renewal can overtake it.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_ingest::config::Timing;
use svc_testkit::{Latencies, ServiceBuilder, Site, faults, raise_file_limit};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn revocations_end_streams_within_a_second() -> Result<()> {
    let latencies = revocations(|builder| builder).await?;
    println!("revocation to the stream's end, by notification: {latencies}");
    ensure!(latencies.quantile(0.99) <= Duration::from_secs(1));
    ensure!(latencies.max() <= Duration::from_secs(10));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn revocations_end_streams_within_ten_seconds_without_notifications() -> Result<()> {
    let latencies = revocations(ServiceBuilder::without_notifications).await?;
    println!("revocation to the stream's end, by the poll alone: {latencies}");
    ensure!(latencies.quantile(0.5) > Duration::from_millis(200));
    ensure!(latencies.max() <= Duration::from_secs(10));
    Ok(())
}

async fn revocations(set: fn(ServiceBuilder) -> ServiceBuilder) -> Result<Latencies> {
    raise_file_limit();
    let site = Site::new().await?;
    let builder = set(site.process().set("INGEST_LOG", "warn"));
    let instances = builder.start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let lived = faults::streams_revoked(&site, addresses, 200).await?;
    Ok(Latencies::of(lived))
}

/// How long an issued JWT may take to the client.
const ON_THE_WAY: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn no_jwt_is_renewed_after_any_of_1000_revocations() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let eager = |timing: &mut Timing| timing.renew_before = Duration::from_secs(24 * 3600 - 1);
    let instances = site.instance().timing(eager).start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let (mut renewed, mut late) = (0, Vec::new());
    for wave in 0..5 {
        let agents = wave * 200..(wave + 1) * 200;
        let (more, later) = faults::renewals_raced(&site, addresses, agents).await?;
        renewed += more;
        late.extend(later);
    }
    let count = late.len();
    let late = Latencies::of(late);
    println!("1000 revocations against {renewed} renewals: {count} came after, late by {late}");
    ensure!(renewed >= 1000, "no call raced");
    ensure!(late.max() < ON_THE_WAY);
    Ok(())
}
