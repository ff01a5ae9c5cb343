//! The HTTP port: health check, JWKS and metrics, over plain HTTP and without authentication.
//!
//! Anyone can connect, so everything is limited: three paths, GET and HEAD, 8 KiB of headers within 5 s, and a fixed
//! number of connections.

mod pages;

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

pub use pages::Pages;

use crate::listener::Shedding;

/// Well below the 512 files that the gRPC port leaves free, because the database pool needs some of them.
const MAX_CONNECTIONS: usize = 384;
const HEADER_DEADLINE: Duration = Duration::from_secs(5);
/// How long a client may leave a response unread.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Scrapers keep connections for a long time; after this they have to reconnect, as everybody does.
const CONNECTION_LIFE: Duration = Duration::from_mins(5);
const HEADER_BYTES: usize = 8 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const HEADER_COUNT: usize = 64;

/// The bound port, before it accepts connections.
#[derive(Debug)]
pub struct HttpServer {
    socket: TcpListener,
}

impl HttpServer {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            socket: TcpListener::bind(address).await?,
        })
    }

    /// The real address, where port 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves `pages` until `stop`.
    pub async fn run(self, pages: Pages, stop: CancellationToken) -> anyhow::Result<()> {
        let service = TowerToHyperService::new(pages.router());
        let mut connections = Connections::default();
        let mut shedding = Shedding::new();
        while let Some(stream) = stop.run_until_cancelled(self.accept(&mut shedding)).await {
            let connection = serve(stream, service.clone());
            connections.add(tokio::spawn(
                stop.clone().run_until_cancelled_owned(connection),
            ));
        }
        Ok(())
    }

    /// An error of `accept` means that the machine has no files or no memory left: pausing is right.
    async fn accept(&self, shedding: &mut Shedding) -> TcpStream {
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    shedding.close_waiting(&self.socket, &error);
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// The open connections, the oldest first. At the limit, a new connection replaces the oldest one. Requests are answered
/// within milliseconds, so the oldest connection belongs to a client that is silent or slow, or to a scraper, which
/// reconnects.
#[derive(Debug, Default)]
struct Connections(VecDeque<JoinHandle<Option<()>>>);

impl Connections {
    fn add(&mut self, connection: JoinHandle<Option<()>>) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= MAX_CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

/// Serves one connection. Errors are the client's, and are not logged.
async fn serve(stream: TcpStream, service: TowerToHyperService<axum::Router>) {
    let limited = SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_DEADLINE));
    if let Err(error) = limited {
        tracing::debug!(%error, "a socket option was refused");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADER_COUNT)
        .serve_connection(TokioIo::new(stream), service);
    drop(timeout(CONNECTION_LIFE, connection).await);
}
