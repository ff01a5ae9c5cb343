//! Small questions to a service's HTTP port.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(5);

/// The status and the body.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("no end of the head")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        anyhow::Ok((status, body.to_owned()))
    };
    timeout(PATIENCE, exchange).await?
}
