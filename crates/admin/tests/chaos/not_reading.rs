//! Agents that report but do not read: the service closes them in time and holds little for them.

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
use svc_proto::{
    ClientMessage,
    v1::{Report, Sample, Vitals},
};
use svc_testkit::{
    AUTO, ActiveAgent, Site, Tls, TokenRules, Usage, faults::UnreadStream, raise_file_limit,
    request, token,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpSocket,
    time::sleep,
};
use tokio_rustls::TlsConnector;

const AGENTS: u32 = 100;
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
        // The allocator returns freed memory at once, so that resident memory is memory in use.
        .set("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
        .start()
        .await?;
    let max_uses = AGENTS.try_into()?;
    let secret = token(&site, TokenRules { max_uses, ..AUTO }).await?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(Reporter::welcomed(process.grpc, number, &secret).await?);
    }
    let resident = || Usage::of(process.pid()).map(|usage| usage.resident);
    let began = Instant::now();
    for agent in &mut agents {
        agent.stop_reading_and_report()?;
    }
    let mut seen = Vec::new();
    // They keep the presence of lost agents for a while, as any whose connection ends.
    let closed = "SELECT count(*) FROM agent_state WHERE instance_id IS NULL";
    while site.psql(closed).await? != AGENTS.to_string() {
        ensure!(began.elapsed() < Duration::from_mins(2), "never closed");
        seen.push(resident()?);
        sleep(Duration::from_millis(100)).await;
    }
    let took = began.elapsed();
    // At half time everything is stored and no agent is closed. What the service holds for them is
    // what it gives back at their end.
    sleep(Duration::from_secs(1)).await;
    let held = seen[seen.len() / 2].saturating_sub(resident()?) / u64::from(AGENTS);
    println!(
        "{AGENTS} agents report and do not read: closed after {took:.1?}, {} KiB held for each",
        held >> 10
    );
    ensure!(took <= Duration::from_secs(30));
    ensure!((1..=MOST_HELD).contains(&held));
    Ok(())
}

/// An agent whose stream was welcomed.
struct Reporter {
    reads: Arc<AtomicBool>,
    stream: UnreadStream,
}

impl Reporter {
    async fn welcomed(address: SocketAddr, number: u32, secret: &str) -> Result<Self> {
        let agent = ActiveAgent::with_token(address, number, secret).await?;
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let config = Tls::with(&agent.agent.identity).config()?;
        let tls = TlsConnector::from(Arc::new(config));
        let stream = tls
            .connect("localhost".try_into()?, socket.connect(address).await?)
            .await?;
        let reads = Arc::new(AtomicBool::new(true));
        let stream = ReadWhile {
            stream,
            reads: reads.clone(),
        };
        let mut http2 = h2::client::Builder::new();
        http2
            .initial_window_size(1 << 24)
            .initial_connection_window_size(1 << 24);
        let mut stream = UnreadStream::open(&mut http2, stream, &agent).await?;
        ensure!(stream.answers.data().await.is_some(), "no Welcome");
        Ok(Self { reads, stream })
    }

    /// Every sample is rejected, and consecutive ones for different reasons, so that the answers
    /// are as large as possible.
    fn stop_reading_and_report(&mut self) -> Result<()> {
        self.reads.store(false, Ordering::Relaxed);
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
                update: None,
                ..Report::default()
            };
            self.stream.send(&request(ClientMessage::Report(report)))?;
        }
        Ok(())
    }
}

/// A stream that is read only while `reads` is true.
struct ReadWhile<S> {
    stream: S,
    reads: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadWhile<S> {
    /// Registers no waker once it stops reading: nothing reads this stream again.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads.load(Ordering::Relaxed) {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadWhile<S> {
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
