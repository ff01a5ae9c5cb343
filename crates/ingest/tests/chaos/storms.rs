//! A whole fleet that reconnects at once, and what the others notice of it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_sandbox::Proxy;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    figures::Latencies,
    fleet::{Fleet, Pace},
    harness::{Site, get, raise_file_limit},
    scenes::{start_process, statements},
};

const OTHERS: u32 = 50;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn two_thousand_agents_reconnect_at_once_in_a_hundred_statements() -> Result<()> {
    storm(2000, 100).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn five_thousand_agents_reconnect_at_once_and_nobody_else_suffers() -> Result<()> {
    storm(5000, 250).await
}

/// All are back within a minute, opened in at most so many statements, and
/// neither other agents nor readers of the HTTP port notice much of it.
async fn storm(agents: u32, most_statements: u64) -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let instances = [
        start_process(&site, None).await?,
        start_process(&site, None).await?,
    ];
    let (grpc, http) = (
        instances.each_ref().map(|instance| instance.grpc),
        instances.each_ref().map(|instance| instance.http),
    );
    let proxy = Proxy::start(grpc.to_vec()).await?;
    let storming = Pace {
        every: Duration::from_secs(4),
        patience: Duration::from_secs(30),
        keepalive: Duration::from_secs(60),
        backoff: Duration::from_millis(1),
    };
    let storm = Fleet::start(&site, &[proxy.address()], 0, agents, storming).await?;
    let others = Fleet::start(&site, &grpc, agents, OTHERS, Pace::default()).await?;
    others.all_acked_since(Instant::now()).await?;
    let stop = CancellationToken::new();
    let pages = tokio::spawn(ask_pages(http[0], stop.clone()));
    let (asked, known) = (statements(&http).await?, latencies(&others).len());
    let began = Instant::now();
    proxy.cut_all();
    let back = "all are back";
    svc_sandbox::eventually(back, Duration::from_secs(120), async || {
        storm.streams().iter().all(|streams| *streams >= 2)
    })
    .await?;
    let took = began.elapsed();
    stop.cancel();
    let opens = statements(&http).await?["sessions_open"] - asked["sessions_open"];
    let pages = Latencies::of(pages.await??);
    let acks = Latencies::of(latencies(&others).split_off(known));
    println!("{agents} agents reconnect at once: all in after {took:.1?}, {opens} statements");
    println!("  others' acknowledgements: {acks}");
    println!("  /healthz and JWKS: {pages}");
    ensure!(took <= Duration::from_secs(60));
    ensure!(opens <= most_statements);
    ensure!(acks.quantile(0.99) < Duration::from_secs(2));
    ensure!(pages.quantile(0.99) < Duration::from_millis(500));
    storm.audit(&site).await?;
    others.audit(&site).await
}

fn latencies(fleet: &Fleet) -> Vec<Duration> {
    let ledgers = fleet.ledgers().into_iter();
    ledgers.flat_map(|ledger| ledger.latencies).collect()
}

async fn ask_pages(http: SocketAddr, stop: CancellationToken) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    while !stop.is_cancelled() {
        for path in ["/healthz", "/.well-known/jwks.json"] {
            let asked = Instant::now();
            ensure!(get(http, path).await?.status == 200);
            latencies.push(asked.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(latencies)
}
