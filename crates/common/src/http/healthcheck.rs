//! The question of the commands `healthcheck`, which an image without a shell needs.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    #[error("{0} does not answer in time")]
    Silent(SocketAddr),
    #[error("{0}")]
    Away(SocketAddr, #[source] io::Error),
    /// The last line of the answer says why.
    #[error("{0}")]
    Reason(String),
}

/// Asks `/healthz` of the program on this machine whose HTTP port this is.
pub async fn healthcheck(address: SocketAddr) -> Result<(), Unhealthy> {
    let answer = timeout(DEADLINE, ask(address)).await;
    let answer = answer.map_err(|_| Unhealthy::Silent(address))?;
    let answer = answer.map_err(|error| Unhealthy::Away(address, error))?;
    let status = answer.lines().next().unwrap_or_default();
    if status.contains(" 200 ") {
        return Ok(());
    }
    let reason = answer.lines().last().unwrap_or_default();
    Err(Unhealthy::Reason(reason.to_owned()))
}

async fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(REQUEST).await?;
    let mut answer = String::new();
    stream.take(16 * 1024).read_to_string(&mut answer).await?;
    Ok(answer)
}
