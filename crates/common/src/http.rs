//! A plain HTTP/1.1 port: the socket, and the bounds of its connections.
//!
//! Anyone may connect. So the head of a request is bounded in size and time, and a client that leaves its response unread is
//! cut off.

mod healthcheck;

use std::{io, net::SocketAddr, time::Duration};

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

pub use healthcheck::{Transport, Unhealthy, healthcheck};

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const HEADER_COUNT: usize = 64;

/// A bound port, before or while it accepts connections.
#[derive(Debug)]
pub struct Port(TcpListener);

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until the head of a request is complete.
    pub header_deadline: Duration,
    pub header_bytes: usize,
    /// How long a client may leave a response unread.
    pub send_deadline: Duration,
}

impl Port {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// The real address, where port 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The next connection. `failed` gets every error of `accept`: the machine has no files or no memory left, so a pause
    /// follows.
    pub async fn accept(
        &self,
        mut failed: impl FnMut(&TcpListener, &io::Error),
    ) -> (TcpStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => failed(&self.0, &error),
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

impl Limits {
    /// Sets the socket's options, and returns the protocol for its connection.
    pub fn http1(self, stream: &TcpStream) -> http1::Builder {
        let limited = SockRef::from(stream).set_tcp_user_timeout(Some(self.send_deadline));
        if let Err(error) = limited.and(stream.set_nodelay(true)) {
            tracing::debug!(%error, "a socket option was refused");
        }
        let mut protocol = http1::Builder::new();
        protocol
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_deadline)
            .max_buf_size(self.header_bytes)
            .max_headers(HEADER_COUNT);
        protocol
    }
}
