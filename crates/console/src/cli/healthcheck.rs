//! `svc-console healthcheck`: asks `/healthz` of the console on this machine.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::config;

const DEADLINE: Duration = Duration::from_secs(5);

pub async fn run() -> anyhow::Result<()> {
    let port = config::port()?;
    let answer = timeout(DEADLINE, ask(port)).await;
    let answer = answer.context("no answer in time")??;
    let status = answer.lines().next().unwrap_or_default();
    let reason = answer.lines().last().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{reason}");
    Ok(())
}

async fn ask(port: u16) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(16 * 1024).read_to_string(&mut answer).await?;
    Ok(answer)
}
