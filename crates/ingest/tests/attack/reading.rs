//! Clients that ask and do not read, or ask once and fall silent: they are
//! closed, and what is held for them meanwhile is little.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    harness::{PATIENCE, Site, Tls},
    raw::{self, check},
};

const INITIAL_WINDOW_SIZE: u16 = 4;

/// Closed by the service, whatever it still says before.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    let mut rest = Vec::new();
    let _how: std::io::Result<usize> = timeout(PATIENCE, stream.read_to_end(&mut rest)).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_closed() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .limits(|limits| limits.send_deadline = Duration::from_secs(1));
    let instance = instance.start().await?;
    let mut stream = raw::speaking(instance.grpc, &[(INITIAL_WINDOW_SIZE, 0)]).await?;
    stream.write_all(&check(1)).await?;
    let asked = Instant::now();
    closed(&mut stream).await?;
    let after = asked.elapsed();
    ensure!(after >= Duration::from_millis(500), "closed too soon");
    ensure!(after < Duration::from_secs(25), "closed after {after:?}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_is_silent_after_its_first_request_is_closed() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .limits(|limits| limits.idle = Duration::from_secs(1));
    let instance = instance.start().await?;
    let mut stream = raw::speaking(instance.grpc, &[]).await?;
    stream.write_all(&check(1)).await?;
    let asked = Instant::now();
    closed(&mut stream).await?;
    let after = asked.elapsed();
    ensure!(after >= Duration::from_millis(500), "closed too soon");
    ensure!(after < Duration::from_secs(25), "closed after {after:?}");
    Ok(())
}

/// A socket that soon has no room for what it is sent.
async fn narrow(address: std::net::SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.set_send_buffer_size(4096)?;
    Ok(socket.connect(address).await?)
}

/// Writes until it is cut off.
async fn until_cut(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    while stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok() {}
}

#[tokio::test]
async fn a_reader_of_pages_that_does_not_read_is_closed() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let mut stream = narrow(instance.http).await?;
    let asking = until_cut(
        &mut stream,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    timeout(PATIENCE, asking).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_client_whose_socket_is_never_read_is_closed_within_30_s() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let config = Tls::with(&svc_sandbox::Identity::self_signed("deaf")?).config()?;
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    let stream = narrow(process.grpc).await?;
    let mut stream = connector.connect("localhost".try_into()?, stream).await?;
    stream.write_all(raw::PREFACE).await?;
    stream.write_all(&raw::settings(&[])).await?;
    let watch = raw::call(1, "/grpc.health.v1.Health/Watch");
    stream.write_all(&watch).await?;
    let message = raw::frame(raw::DATA, raw::END_STREAM, 1, &[0; 5]);
    stream.write_all(&message).await?;
    let asked = Instant::now();
    let ping = raw::frame(raw::PING, 0, 0, &[7; 8]);
    timeout(PATIENCE * 2, until_cut(&mut stream, &ping)).await?;
    let cut = asked.elapsed();
    println!("a client that never reads was cut after {cut:.1?}");
    ensure!(cut <= Duration::from_secs(30));
    Ok(())
}
