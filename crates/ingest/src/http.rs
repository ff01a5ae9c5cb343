//! The HTTP port: health check, JWKS and metrics, for anyone, over plain HTTP.
//!
//! Small on purpose: GET and HEAD of three paths, 8 KiB of headers within 5 s,
//! and so many connections, so that nobody can tie it up.

mod pages;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

pub use pages::Pages;

use crate::listener::Shedding;

/// Well below the files that the gRPC port leaves free: the database needs some too.
const CONNECTIONS: usize = 384;
const HEADER_DEADLINE: Duration = Duration::from_secs(5);
/// The same while more than half of the places are taken: silence costs others.
const CROWDED_HEADER_DEADLINE: Duration = Duration::from_secs(1);
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
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut shedding = Shedding::new();
        while let Some(place) = stop
            .run_until_cancelled(places.clone().acquire_owned())
            .await
        {
            let accept = self.accept(&mut shedding);
            let Some(stream) = stop.run_until_cancelled(accept).await else {
                break;
            };
            let deadline = header_deadline(places.available_permits());
            let connection = serve(stream, service.clone(), deadline, place?);
            tokio::spawn(stop.clone().run_until_cancelled_owned(connection));
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
                    shedding.turn_away(&self.socket, &error);
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

fn header_deadline(free: usize) -> Duration {
    if free < CONNECTIONS / 2 {
        return CROWDED_HEADER_DEADLINE;
    }
    HEADER_DEADLINE
}

/// What clients do wrong here is theirs to see: errors are not logged.
async fn serve(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    header_deadline: Duration,
    _place: OwnedSemaphorePermit,
) {
    let unread = SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_DEADLINE));
    if let Err(error) = unread {
        tracing::debug!(%error, "a socket option was refused");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_deadline)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADER_COUNT)
        .serve_connection(TokioIo::new(stream), service);
    drop(timeout(CONNECTION_LIFE, connection).await);
}
