//! The HTTP port: health check, JWKS and metrics, over plain HTTP and without authentication.
//!
//! Anyone can connect, so everything is limited: three paths, GET and HEAD, 8 KiB of headers within 5 s, and a fixed
//! number of connections.

mod pages;

use std::{collections::VecDeque, io, net::SocketAddr, time::Duration};

use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use svc_common::http::{Limits, Port};
use svc_front::listener::Shedding;
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub use pages::Pages;

/// Well below the 512 files that the gRPC port leaves free, because the database pool needs some of them.
const MAX_CONNECTIONS: usize = 384;
const LIMITS: Limits = Limits {
    header_deadline: Duration::from_secs(5),
    header_bytes: 8 * 1024,
    send_deadline: Duration::from_secs(5),
};
/// Scrapers keep connections for a long time; after this they have to reconnect, as everybody does.
const CONNECTION_LIFE: Duration = Duration::from_mins(5);

/// The bound port, before it accepts connections.
#[derive(Debug)]
pub struct HttpServer(Port);

impl HttpServer {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Port::bind(address).await.map(Self)
    }

    /// The real address, where port 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.address()
    }

    /// Serves `pages` until `stop`.
    pub async fn run(self, pages: Pages, stop: CancellationToken) -> anyhow::Result<()> {
        let service = TowerToHyperService::new(pages.router());
        let mut connections = Connections::default();
        let mut shedding = Shedding::new();
        loop {
            let accepted = self.0.accept(|socket, error| {
                shedding.close_waiting(socket, error);
            });
            let Some((stream, _)) = stop.run_until_cancelled(accepted).await else {
                return Ok(());
            };
            let connection = serve(stream, service.clone());
            connections.add(tokio::spawn(
                stop.clone().run_until_cancelled_owned(connection),
            ));
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
    let connection = LIMITS
        .http1(&stream)
        .serve_connection(TokioIo::new(stream), service);
    drop(timeout(CONNECTION_LIFE, connection).await);
}
