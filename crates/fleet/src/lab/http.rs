//! A minimal HTTP client for the service's HTTP port.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the status and the body.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        let (head, body) = response
            .split_once("\r\n\r\n")
            .context("no end of the headers")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        anyhow::Ok((status, body.to_owned()))
    };
    timeout(TIMEOUT, exchange).await?
}
