//! A well-behaved client that measures the service during an attack, over one lasting connection and
//! over new ones.
//!
//! It has a thread and a runtime of its own, so that it measures the service and not the task queue
//! of the attackers.

use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use svc_proto::v1::ingest_service_client::IngestServiceClient;
use svc_testkit::{FakeAgent, Latencies, channel, get, is_active, machine};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const PACE: Duration = Duration::from_millis(100);

/// Sends requests until `finish`.
#[derive(Debug)]
pub struct Witness {
    stop: CancellationToken,
    thread: JoinHandle<Result<Latencies>>,
}

impl Witness {
    /// An agent on the gRPC port, which alternates between a new connection and a lasting one, over which it has
    /// registered with this token.
    pub fn agent(address: SocketAddr, token: String) -> Self {
        Self::spawn(async move |stop| {
            let agent = FakeAgent::on(machine(rand::random()))?;
            let identity = agent.identity.clone();
            let lasting = channel(address, &identity).await?;
            let mut client = IngestServiceClient::new(lasting.clone());
            let answer = client.register(agent.request(&token)).await?;
            let answer = answer.into_inner().message().await?;
            anyhow::ensure!(answer.is_some_and(|answer| is_active(&answer)));
            let mut turn = 0;
            every(PACE, stop, async || {
                turn += 1;
                match turn % 2 {
                    0 => ask(lasting.clone()).await,
                    _ => ask(channel(address, &identity).await?).await,
                }
            })
            .await
        })
    }

    /// An HTTP client that alternates between two pages.
    pub fn reader(address: SocketAddr) -> Self {
        Self::spawn(async move |stop| {
            let mut paths = ["/healthz", "/.well-known/jwks.json"].into_iter().cycle();
            every(PACE, stop, async || {
                let path = paths.next().unwrap_or_default();
                let answer = get(address, path).await?;
                anyhow::ensure!(answer.status == 200, "{path}: {}", answer.status);
                Ok(())
            })
            .await
        })
    }

    fn spawn<F>(work: impl FnOnce(CancellationToken) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<Latencies>>,
    {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(work(stopped))
        });
        Self { stop, thread }
    }

    /// The latencies; an error if a request failed.
    pub fn finish(self) -> Result<Latencies> {
        self.stop.cancel();
        self.thread
            .join()
            .map_err(|_| anyhow!("the witness panicked"))?
    }
}

async fn every(
    pace: Duration,
    stop: CancellationToken,
    mut question: impl AsyncFnMut() -> Result<()>,
) -> Result<Latencies> {
    let mut tick = interval(pace);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut latencies = Vec::new();
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let asked = Instant::now();
        question().await?;
        latencies.push(asked.elapsed());
    }
    Ok(Latencies::of(latencies))
}

async fn ask(channel: Channel) -> Result<()> {
    let question = HealthCheckRequest::default();
    HealthClient::new(channel).check(question).await?;
    Ok(())
}
