//! Agents that go on reporting and read nothing more: they are left in time, and
//! little is held for them meanwhile.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_proto::v1::{Report, Sample, Vitals, heartbeat_request::Message as Say};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpSocket,
    time::sleep,
};
use tokio_rustls::TlsConnector;

use crate::{
    agents::{AUTO, FakeAgent, TokenRules, machine, token},
    beats::saying,
    harness::{Site, Tls, raise_file_limit},
    outages::memory,
    scenes::framed,
};

const DEAF: u32 = 100;
const REPORTS: u64 = 8;
const SAMPLES: u64 = 500;
const MOST_HELD: u64 = 256 << 10;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn agents_that_report_and_do_not_read_are_closed_and_cost_little() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let process = site
        .process()
        .set("INGEST_LOG", "warn")
        // What is freed is given back at once, so that memory in use is what is seen.
        .set("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
        .start()
        .await?;
    let max_uses = DEAF.try_into()?;
    let secret = token(&site, TokenRules { max_uses, ..AUTO }).await?;
    let mut agents = Vec::new();
    for number in 0..DEAF {
        agents.push(Deaf::welcomed(process.grpc, number, &secret).await?);
    }
    let pid = process.pid()?;
    let began = Instant::now();
    for agent in &mut agents {
        agent.stop_reading_and_report()?;
    }
    let mut seen = Vec::new();
    let offline = "SELECT count(*) FROM agent_state WHERE presence = 'offline'";
    while site.psql(offline).await? != DEAF.to_string() {
        ensure!(began.elapsed() < Duration::from_mins(2), "never closed");
        seen.push(memory(pid, "VmRSS:")?);
        sleep(Duration::from_millis(100)).await;
    }
    let took = began.elapsed();
    // By half of the time everything has been stored, and nobody has been closed;
    // what is held for them is what their end gives back.
    sleep(Duration::from_secs(1)).await;
    let held = seen[seen.len() / 2].saturating_sub(memory(pid, "VmRSS:")?) / u64::from(DEAF);
    println!(
        "{DEAF} agents report and do not read: closed after {took:.1?}, {} KiB held for each",
        held >> 10
    );
    ensure!(took <= Duration::from_secs(30));
    ensure!((1..=MOST_HELD).contains(&held));
    Ok(())
}

/// An agent whose stream was welcomed.
struct Deaf {
    ears: Arc<AtomicBool>,
    body: h2::SendStream<bytes::Bytes>,
    _answers: h2::RecvStream,
}

impl Deaf {
    async fn welcomed(address: SocketAddr, number: u32, secret: &str) -> Result<Self> {
        let agent = FakeAgent::on(machine(number))?;
        let jwt = agent.jwt(address, secret).await?;
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let tls = TlsConnector::from(Arc::new(Tls::with(&agent.identity).config()?));
        let stream = tls
            .connect("localhost".try_into()?, socket.connect(address).await?)
            .await?;
        let ears = Arc::new(AtomicBool::new(true));
        let stream = Ears {
            stream,
            open: ears.clone(),
        };
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 24)
            .initial_connection_window_size(1 << 24)
            .handshake(stream)
            .await?;
        tokio::spawn(connection);
        let request =
            http::Request::post("https://localhost/svc.ingest.v1.IngestService/Heartbeat")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("authorization", format!("Bearer {jwt}"))
                .body(())?;
        let (answer, mut body) = requests.ready().await?.send_request(request, false)?;
        body.send_data(framed(&saying(Say::Hello(agent.hello()))), false)?;
        let mut answers = answer.await?.into_body();
        ensure!(answers.data().await.is_some(), "no Welcome");
        Ok(Self {
            ears,
            body,
            _answers: answers,
        })
    }

    /// Every sample is refused, each for another reason than the one before, so that
    /// there is as much to answer as there can be.
    fn stop_reading_and_report(&mut self) -> Result<()> {
        self.ears.store(false, Ordering::Relaxed);
        for report in 0..REPORTS {
            let seqs = report * SAMPLES + 1..=(report + 1) * SAMPLES;
            let samples = seqs.map(|seq| Sample {
                seq,
                sampled_at: Some(prost_types::Timestamp {
                    seconds: 9_000_000_000,
                    nanos: 0,
                }),
                vitals: Some(Vitals {
                    cpu_percent: if seq % 2 == 0 { 0.0 } else { 101.0 },
                    ..Vitals::default()
                }),
            });
            let report = Report {
                samples: samples.collect(),
                gaps: vec![],
            };
            self.body
                .send_data(framed(&saying(Say::Report(report))), false)?;
        }
        Ok(())
    }
}

/// A stream that is read only while it should be.
struct Ears<S> {
    stream: S,
    open: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Ears<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.open.load(Ordering::Relaxed) {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        Poll::Pending // Nobody wakes it: it is deaf from now on.
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ears<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
