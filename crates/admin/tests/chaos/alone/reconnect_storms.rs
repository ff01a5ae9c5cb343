//! A fleet that reconnects at once, and its effect on other clients.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use svc_testkit::{Fleet, Latencies, Pace, Proxy, Site, get, raise_file_limit, transactions};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const OTHERS: u32 = 50;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn two_thousand_agents_reconnect_at_once_in_a_hundred_statements() -> Result<()> {
    storm(2000, 100).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn five_thousand_agents_reconnect_at_once_without_delaying_others() -> Result<()> {
    storm(5000, 250).await
}

/// All agents reconnect within a minute in at most so many statements, and other agents and HTTP
/// clients see little delay.
async fn storm(agents: u32, most_statements: u64) -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let instances = site.server_process().start_pair().await?;
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
    let others = Fleet::start(&site, &grpc, agents, OTHERS, Pace::STEADY).await?;
    others.all_acked_again().await?;
    let stop = CancellationToken::new();
    let pages = std::thread::spawn({
        let stop = stop.clone();
        move || ask_pages(http[0], stop)
    });
    let (asked, known) = (transactions(&http).await?, others.latencies().len());
    let began = Instant::now();
    proxy.cut_all();
    let back = "all are back";
    svc_sandbox::eventually(back, Duration::from_secs(120), async || {
        storm.streams().iter().all(|streams| *streams >= 2)
    })
    .await?;
    let took = began.elapsed();
    stop.cancel();
    let opens = transactions(&http).await?["sessions_open"] - asked["sessions_open"];
    let pages = pages.join().map_err(|_| anyhow!("asking panicked"))?;
    let pages = Latencies::of(pages?);
    let acks = Latencies::of(others.latencies().split_off(known));
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

/// Asks on a thread and a runtime of its own: beside the thousands of agents of this process, it would measure their delay.
#[tokio::main(flavor = "current_thread")]
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
