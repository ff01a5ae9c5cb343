//! The question of the commands `healthcheck`, which an image without a shell needs.

mod any_certificate;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// How the port is spoken to.
#[derive(Clone, Copy, Debug)]
pub enum Transport {
    Clear,
    Tls,
}

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

/// Asks `/healthz` of the program on this machine whose HTTP port is bound to `address`.
pub async fn healthcheck(address: SocketAddr, transport: Transport) -> Result<(), Unhealthy> {
    let address = reachable(address);
    let answer = timeout(DEADLINE, ask(address, transport)).await;
    let answer = answer.map_err(|_| Unhealthy::Silent(address))?;
    let answer = answer.map_err(|error| Unhealthy::Away(address, error))?;
    let status = answer.lines().next().unwrap_or_default();
    if status.contains(" 200 ") {
        return Ok(());
    }
    let reason = answer.lines().last().unwrap_or_default();
    Err(Unhealthy::Reason(reason.to_owned()))
}

/// A port that is bound to all addresses answers at the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    (ip, address.port()).into()
}

async fn ask(address: SocketAddr, transport: Transport) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    match transport {
        Transport::Clear => exchange(stream).await,
        Transport::Tls => {
            let name = ServerName::from(address.ip());
            let connector = any_certificate::connector().map_err(io::Error::other)?;
            exchange(connector.connect(name, stream).await?).await
        }
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    // A server that closes without TLS' own farewell has answered all the same.
    match stream.take(16 * 1024).read_to_end(&mut answer).await {
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}
