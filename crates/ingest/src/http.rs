//! The HTTP port: health check, JWKS and metrics, for anyone, over plain HTTP.
//!
//! Small on purpose: GET and HEAD of three paths, 8 KiB of headers within 5 s,
//! and so many connections, so that nobody can tie it up.

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

/// Well below the files that the gRPC port leaves free: the database needs some too.
const CONNECTIONS: usize = 384;
const HEADER_DEADLINE: Duration = Duration::from_secs(5);
/// For how long a client may leave unread what it asked for.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Scrapers come back on a connection for longer than this; strangers should not.
const CONNECTION_LIFE: Duration = Duration::from_mins(5);
const HEADER_BYTES: usize = 8 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const HEADER_COUNT: usize = 64;

/// The bound port, before it serves.
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

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub async fn run(self, pages: Pages, stop: CancellationToken) -> anyhow::Result<()> {
        let service = TowerToHyperService::new(pages.router());
        let mut places = Places::default();
        let mut shedding = Shedding::new();
        while let Some(stream) = stop.run_until_cancelled(self.accept(&mut shedding)).await {
            let connection = serve(stream, service.clone());
            places.give(tokio::spawn(
                stop.clone().run_until_cancelled_owned(connection),
            ));
        }
        Ok(())
    }

    /// An error here is the machine's, out of files or memory: waiting is right.
    async fn accept(&self, shedding: &mut Shedding) -> TcpStream {
        loop {
            match self.socket.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    shedding.report(&error);
                    shedding.close_waiting(&self.socket, &error);
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// The open connections, the oldest first. When all places are taken, a newcomer
/// gets the oldest one's: who asks is answered within milliseconds, so that who
/// has been here longest is silent, or slow, or a scraper that will come again.
#[derive(Debug, Default)]
struct Places(VecDeque<JoinHandle<Option<()>>>);

impl Places {
    fn give(&mut self, newcomer: JoinHandle<Option<()>>) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= CONNECTIONS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(newcomer);
    }
}

/// What clients do wrong here is theirs to see: errors are not logged.
async fn serve(stream: TcpStream, service: TowerToHyperService<axum::Router>) {
    let unread = SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_DEADLINE));
    if let Err(error) = unread {
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
