//! Clients that begin registrations and reset them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use svc_ingest::enrol::EnrolmentToken;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::behind_proxy;
use crate::{
    AUTO, FakeAgent, Latencies, PATIENCE, Site, Tls, eventually, framed, grpc_call, is_active,
    machine, token,
};

/// How soon a call is reset.
const RESET: Duration = Duration::from_millis(1);
/// How often a key registers: as often as its bucket allows.
const PACE: Duration = Duration::from_secs(1);

/// What the service did under reset registrations.
#[derive(Debug)]
pub struct ResetCalls {
    pub resets: u64,
    /// Connections to PostgreSQL since its start, and how many it may have at once.
    pub connections: u64,
    pub allowed: u64,
    /// Valid registrations meanwhile.
    pub valid: Latencies,
}

/// So many self-made keys register for `length` with well-formed unknown tokens, and reset every call. Meanwhile
/// valid agents register one after another.
pub async fn registrations_reset(keys: usize, length: Duration) -> Result<ResetCalls> {
    let site = Site::new().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let process = site.process().set("DATABASE_URL", url).start().await?;
    let secret = token(&site, AUTO.uses(i32::MAX)).await?;
    let (stop, resets) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
    let _stopped = stop.clone().drop_guard();
    let mut crowd = JoinSet::new();
    for number in 0..keys {
        let (stop, resets, address) = (stop.clone(), resets.clone(), process.grpc);
        let agent = FakeAgent::on(machine(u32::try_from(number)?))?;
        crowd.spawn(async move {
            let resetting = reset_for_ever(address, &agent, &resets);
            stop.run_until_cancelled(resetting).await;
        });
    }
    eventually("all keys are connected", async || {
        resets.load(Ordering::Relaxed) > keys as u64
    })
    .await?;
    let (mut valid, until) = (Vec::new(), Instant::now() + length);
    for number in 1_000_000.. {
        let agent = FakeAgent::on(machine(number))?;
        let mut client = agent.connect(process.grpc).await?;
        let asked = Instant::now();
        let answer = timeout(PATIENCE, client.register(agent.request(&secret))).await??;
        let answer = answer.into_inner().message().await?;
        valid.push(asked.elapsed());
        ensure!(is_active(&answer.context("no answer")?));
        if Instant::now() > until {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    crowd.join_all().await;
    Ok(ResetCalls {
        resets: resets.load(Ordering::Relaxed),
        connections: proxy.accepted(),
        allowed: 16 + 1, // The pool, and LISTEN.
        valid: Latencies::of(valid),
    })
}

/// Reconnects when the service has closed the connection.
async fn reset_for_ever(address: SocketAddr, agent: &FakeAgent, resets: &AtomicU64) {
    let tls = Tls::with(&agent.identity);
    loop {
        let Ok(stream) = tls.connect(address).await else {
            sleep(PACE).await;
            continue;
        };
        let Ok((mut requests, connection)) = h2::client::handshake(stream).await else {
            continue;
        };
        let connection = tokio::spawn(connection);
        while reset_one(&mut requests, agent).await.is_ok() {
            resets.fetch_add(1, Ordering::Relaxed);
            sleep(PACE).await;
        }
        connection.abort();
    }
}

async fn reset_one(requests: &mut SendRequest<Bytes>, agent: &FakeAgent) -> Result<()> {
    let unknown = EnrolmentToken::generate()?;
    let head = grpc_call("/svc.ingest.v1.IngestService/Register")?;
    let mut ready = requests.clone().ready().await?;
    let (answer, mut body) = ready.send_request(head, false)?;
    body.send_data(framed(&agent.request(unknown.expose())), true)?;
    sleep(RESET).await;
    // Dropping both halves of a stream sends RST_STREAM.
    drop((answer, body));
    Ok(())
}
