//! Clients with self-made certificates that begin messages and never complete them.

use std::{future::poll_fn, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::{
    SendStream,
    client::{ResponseFuture, SendRequest},
};
use svc_sandbox::Identity;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use crate::{ServiceProcess, Tls, Usage, grpc_call};

/// As many as a connection may have.
const CALLS: usize = 16;

/// What messages consist of. All strangers share it: a buffer for each call took all memory of the machine.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A call whose message claims a length and lacks its last byte.
#[derive(Clone, Copy, Debug)]
pub struct HalfSent {
    pub path: &'static str,
    pub length: u32,
}

impl HalfSent {
    pub const REFLECTION: Self = Self {
        path: "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        length: 4 << 20,
    };
    pub const HEALTH: Self = Self {
        path: "/grpc.health.v1.Health/Check",
        ..Self::REFLECTION
    };
    pub const UNKNOWN: Self = Self {
        path: "/svc.ingest.v1.IngestService/Nothing",
        ..Self::REFLECTION
    };
    pub const REGISTER: Self = Self {
        path: "/svc.ingest.v1.IngestService/Register",
        length: 64 << 10,
    };
    /// The largest that takes no room.
    pub const SMALL: Self = Self {
        length: 8 << 10,
        ..Self::REGISTER
    };
}

/// One connection and its incomplete calls, until it is dropped.
#[derive(Debug)]
pub struct Stranger {
    connection: JoinHandle<Result<(), h2::Error>>,
    requests: SendRequest<Bytes>,
}

impl Stranger {
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let tls = Tls::with(&Identity::self_signed("stranger")?);
        let (requests, connection) = h2::client::handshake(tls.connect(address).await?).await?;
        let connection = tokio::spawn(connection);
        Ok(Self {
            connection,
            requests,
        })
    }

    /// Begins a call and sends all of its message but the last byte, as fast as the service takes it.
    pub async fn half_send(&self, call: HalfSent) -> Result<(ResponseFuture, SendStream<Bytes>)> {
        let mut requests = self.requests.clone().ready().await?;
        let (answer, mut body) = requests.send_request(grpc_call(call.path)?, false)?;
        let prefix = [&[0][..], &call.length.to_be_bytes()].concat();
        body.send_data(prefix.into(), false)?;
        let mut rest = call.length as usize - 1;
        while rest > 0 {
            body.reserve_capacity(rest);
            let capacity = poll_fn(|context| body.poll_capacity(context)).await;
            let capacity = capacity.context("the call has ended")??;
            let part = &ZEROS[..capacity.min(rest).min(ZEROS.len())];
            body.send_data(Bytes::from_static(part), false)?;
            rest -= part.len();
        }
        Ok((answer, body))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// So many strangers half-send messages for `length`, and again after each refusal. Returns by how many bytes the process
/// grew at most.
pub async fn half_sent_by_strangers(
    process: &ServiceProcess,
    strangers: usize,
    call: HalfSent,
    length: Duration,
) -> Result<u64> {
    let before = Usage::of(process.pid())?.resident;
    let (address, until) = (process.grpc, Instant::now() + length);
    let crowd = (0..strangers).map(|_| half_send_until(address, call, until));
    let peak = Usage::peak_during(process.pid(), crowd.collect()).await?;
    Ok(peak.saturating_sub(before))
}

async fn half_send_until(address: SocketAddr, call: HalfSent, until: Instant) {
    let sending = async {
        loop {
            if let Ok(stranger) = Stranger::connect(address).await {
                let calls = (0..CALLS).map(|_| half_send_for_ever(&stranger, call));
                futures_util::future::join_all(calls).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let _: Result<(), _> = timeout_at(until, sending).await;
}

/// Until the connection is lost.
async fn half_send_for_ever(stranger: &Stranger, call: HalfSent) {
    while !stranger.connection.is_finished() {
        if let Ok((answer, _body)) = stranger.half_send(call).await
            && let Ok(answer) = answer.await
        {
            let mut body = answer.into_body();
            while matches!(body.data().await, Some(Ok(_))) {}
        }
        sleep(Duration::from_millis(100)).await;
    }
}
