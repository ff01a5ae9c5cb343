//! `svc-ingest healthcheck`: asks `/healthz` of the service on this machine. An image without a shell needs it.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use svc_ingest::config;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(5);

pub async fn run() -> anyhow::Result<ExitCode> {
    let address = config::http_address()?;
    let answer = timeout(DEADLINE, ask(address)).await;
    let answer = answer.with_context(|| format!("{address} does not answer in time"))?;
    let answer = answer.with_context(|| address.to_string())?;
    let status = answer.lines().next().unwrap_or_default();
    let reason = answer.lines().last().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{reason}");
    Ok(ExitCode::SUCCESS)
}

async fn ask(address: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(16 * 1024).read_to_string(&mut answer).await?;
    Ok(answer)
}
