//! The agent that must not notice: it keeps asking, over one lasting connection
//! and over new ones, while others attack.
//!
//! It has a thread and a runtime of its own, so that it measures the service and
//! not the attackers' queue.

use std::{
    fmt,
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use svc_sandbox::Identity;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::harness::{channel, get};

const PACE: Duration = Duration::from_millis(100);

/// Asks until it is told to stop.
#[derive(Debug)]
pub struct Witness {
    stop: CancellationToken,
    thread: JoinHandle<Result<Latencies>>,
}

impl Witness {
    /// An agent on the gRPC port: a new connection and a lasting one in turns.
    pub fn agent(address: SocketAddr) -> Self {
        Self::spawn(async move |stop| {
            let identity = Identity::self_signed("agent")?;
            let lasting = channel(address, &identity).await?;
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

    /// A reader of the HTTP port's two pages in turns.
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

    /// What it saw; an error if any of its questions was not answered.
    pub fn finish(self) -> Result<Latencies> {
        self.stop.cancel();
        self.thread
            .join()
            .map_err(|_| anyhow!("the witness broke"))?
    }
}

async fn every(
    pace: Duration,
    stop: CancellationToken,
    mut question: impl AsyncFnMut() -> Result<()>,
) -> Result<Latencies> {
    let mut tick = interval(pace);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut latencies = Latencies::default();
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let asked = Instant::now();
        question().await?;
        latencies.0.push(asked.elapsed());
    }
    latencies.0.sort();
    Ok(latencies)
}

async fn ask(channel: Channel) -> Result<()> {
    let question = HealthCheckRequest::default();
    HealthClient::new(channel).check(question).await?;
    Ok(())
}

/// Sorted.
#[derive(Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * q).ceil() as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| self.quantile(q).as_millis();
        write!(
            f,
            "p50 {} ms, p99 {} ms, max {} ms ({} asked)",
            ms(0.5),
            ms(0.99),
            ms(1.0),
            self.count()
        )
    }
}
