//! Clients that have proven nothing: what they send takes little memory and little time, and agents do not notice them.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_sandbox::Identity;
use svc_testkit::{ActiveAgent, OneConnection, Site, Tls};
use tokio::{task::JoinSet, time::Instant};

/// Checks the health so many times over one connection. Each check is two frames, which cost 4 KiB.
async fn checks(mut client: OneConnection, count: u32) -> Result<()> {
    for _ in 0..count {
        ensure!(client.health_status().await? == "0");
    }
    Ok(())
}

/// 160 checks cost 640 KiB: 128 KiB at once, and 512 KiB at 128 KiB/s.
#[tokio::test]
async fn a_connection_is_read_slowly_until_it_is_proven() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let tls = Tls::with(&Identity::self_signed("stranger")?);
    let began = Instant::now();
    checks(OneConnection::open(&tls, instance.grpc).await?, 160).await?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(3500), "{took:?}");
    instance.stop().await
}

/// 40 strangers with 72 checks each: beyond the first 128 KiB of each they cost 6 MiB, which are read at 1 MiB/s.
#[tokio::test(flavor = "multi_thread")]
async fn all_strangers_share_one_rate_and_newcomers_do_not_wait_for_them() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    let (address, began) = (instance.grpc, Instant::now());
    let mut strangers = JoinSet::new();
    for _ in 0..40 {
        strangers.spawn(async move {
            let tls = Tls::with(&Identity::self_signed("stranger")?);
            checks(OneConnection::open(&tls, address).await?, 72).await
        });
    }
    for number in 2..6 {
        let newcomer = ActiveAgent::new(&site, instance.grpc, number).await?;
        newcomer.heartbeat().await?.report_acked(1..=3).await?;
    }
    stream.report_acked(1..=3).await?;
    strangers
        .join_all()
        .await
        .into_iter()
        .collect::<Result<()>>()?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(5500), "{took:?}");
    instance.stop().await
}
