//! Clients that send requests and do not read, or send one request and nothing more: the service
//! closes them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_front::listener::Limits;
use svc_proto::ClientMessage;
use svc_testkit::{ActiveAgent, PATIENCE, Site, Tls, framed, large_report, request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::http2::{self, Received, check};

const INITIAL_WINDOW_SIZE: u16 = 4;

/// Waits until the service closes the connection.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    let mut rest = Vec::new();
    let _how: std::io::Result<usize> = timeout(PATIENCE, stream.read_to_end(&mut rest)).await?;
    Ok(())
}

/// Sends one request with these settings, and expects the service to close the connection after the
/// deadline of a second, and not before.
async fn closed_at_deadline(limits: fn(&mut Limits), settings: &[(u16, u32)]) -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().limits(limits).start().await?;
    let mut stream = http2::open_http2(instance.grpc, settings).await?;
    stream.write_all(&check(1)).await?;
    let asked = Instant::now();
    closed(&mut stream).await?;
    let after = asked.elapsed();
    ensure!(
        after >= Duration::from_millis(500),
        "closed before the deadline"
    );
    ensure!(after < Duration::from_secs(25), "closed after {after:?}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_grants_no_window_is_closed() -> Result<()> {
    let limits = |limits: &mut Limits| limits.send_deadline = Duration::from_secs(1);
    closed_at_deadline(limits, &[(INITIAL_WINDOW_SIZE, 0)]).await
}

#[tokio::test]
async fn a_client_that_is_silent_after_its_first_request_is_closed() -> Result<()> {
    closed_at_deadline(|limits| limits.idle = Duration::from_secs(1), &[]).await
}

/// An agent grants its heartbeat stream no window, and reads a health check ten times a second over the same
/// connection.
#[tokio::test]
async fn an_unread_stream_beside_busy_ones_ends_its_connection() -> Result<()> {
    let site = Site::new().await?;
    let limits = |limits: &mut Limits| limits.send_deadline = Duration::from_secs(1);
    let (instance, agent) = site.instance().limits(limits).with_agent(&site).await?;
    let tls = Tls::with(&agent.agent.identity);
    let stream = tls.connect(instance.grpc).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    writer.write_all(http2::PREFACE).await?;
    let no_window = http2::settings(&[(INITIAL_WINDOW_SIZE, 0)]);
    writer.write_all(&no_window).await?;
    writer.write_all(&heartbeat(1, &agent)).await?;
    let asked = Instant::now();
    let checking = async {
        for id in (3..).step_by(2) {
            let check = [check(id), http2::window_update(id, 1000)].concat();
            if writer.write_all(&check).await.is_err() || writer.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let answered = async {
        let mut answered = 0;
        while let Ok(received) = Received::read(&mut reader).await {
            answered += usize::from(received.stream > 1 && received.ends());
        }
        answered
    };
    let ((), answered) = timeout(PATIENCE, async { tokio::join!(checking, answered) }).await?;
    let after = asked.elapsed();
    ensure!(answered > 1, "the health checks were not answered");
    ensure!(after >= Duration::from_secs(1), "closed after {after:?}");
    let state = "SELECT presence, cause FROM agent_state";
    site.becomes(state, "offline|lost").await
}

/// The window takes the first byte of the Welcome. The acknowledgement of a report is handed out when the connection's task
/// sleeps already, and nothing else comes before the first keepalive, which is later than this test waits.
#[tokio::test]
async fn an_unread_stream_on_a_quiet_connection_ends_it() -> Result<()> {
    let site = Site::new().await?;
    let limits = |limits: &mut Limits| limits.send_deadline = Duration::from_secs(1);
    let (instance, agent) = site.instance().limits(limits).with_agent(&site).await?;
    let tls = Tls::with(&agent.agent.identity);
    let mut stream = tls.connect(instance.grpc).await?;
    let one_byte = http2::settings(&[(INITIAL_WINDOW_SIZE, 1)]);
    let opening = [http2::PREFACE, &one_byte, &heartbeat(1, &agent)].concat();
    stream.write_all(&opening).await?;
    while Received::read(&mut stream).await?.kind != http2::DATA {}
    let report = framed(&request(ClientMessage::Report(large_report(1..=1))));
    let report = http2::frame(http2::DATA, 0, 1, &report);
    stream.write_all(&report).await?;
    let reported = Instant::now();
    closed(&mut stream).await?;
    let after = reported.elapsed();
    ensure!(after >= Duration::from_secs(1), "closed after {after:?}");
    let stored = "SELECT count(*) FROM host_metrics";
    site.expect(stored, "1").await
}

/// The call of a heartbeat stream and its Hello.
pub fn heartbeat(stream: u32, agent: &ActiveAgent) -> Vec<u8> {
    let mut headers = http2::call_headers("/svc.ingest.v1.IngestService/Heartbeat");
    let bearer = format!("Bearer {}", agent.jwt);
    headers.extend(http2::header("authorization", &bearer));
    let hello = framed(&request(ClientMessage::Hello(agent.agent.hello())));
    let call = http2::frame(http2::HEADERS, http2::END_HEADERS, stream, &headers);
    [call, http2::frame(http2::DATA, 0, stream, &hello)].concat()
}

/// A socket with small buffers.
async fn small_socket(address: std::net::SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.set_send_buffer_size(4096)?;
    Ok(socket.connect(address).await?)
}

/// Writes until the connection is closed.
async fn write_until_closed(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    while stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok() {}
}

#[tokio::test]
async fn an_http_client_that_does_not_read_is_closed() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let mut stream = small_socket(instance.http).await?;
    let asking = write_until_closed(
        &mut stream,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    timeout(PATIENCE, asking).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_client_whose_socket_is_never_read_is_closed_within_30_s() -> Result<()> {
    let (_site, process) = Site::with_process().await?;
    let config = Tls::with(&svc_sandbox::Identity::self_signed("agent")?).config()?;
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    let stream = small_socket(process.grpc).await?;
    let mut stream = connector.connect("localhost".try_into()?, stream).await?;
    stream.write_all(http2::PREFACE).await?;
    stream.write_all(&http2::settings(&[])).await?;
    let watch = http2::call(1, "/grpc.health.v1.Health/Watch");
    stream.write_all(&watch).await?;
    let message = http2::frame(http2::DATA, http2::END_STREAM, 1, &[0; 5]);
    stream.write_all(&message).await?;
    let asked = Instant::now();
    let ping = http2::frame(http2::PING, 0, 0, &[7; 8]);
    timeout(PATIENCE * 2, write_until_closed(&mut stream, &ping)).await?;
    let cut = asked.elapsed();
    println!("a client that never reads was cut after {cut:.1?}");
    ensure!(cut <= Duration::from_secs(30));
    Ok(())
}
