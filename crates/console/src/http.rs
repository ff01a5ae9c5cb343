//! The port: plain HTTP/1.1 behind a reverse proxy that ends TLS.
//!
//! Anyone may connect before signing in, so everything is limited: the number of connections, the
//! size and the time of a request's head, the time of its body (see `app`), and how long a client may
//! leave a response unread. On a stop, idle connections close at once, running requests may finish,
//! and live streams end because they watch the same token.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{Router, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    address::{Peer, network},
    places::{Place, Places},
    telemetry::{Metrics, Open},
};

/// A viewer has one live stream and a few requests open.
const MAX_CONNECTIONS: usize = 4096;
/// Of one network, so that nobody takes all connections. Trusted proxies have no such limit.
const MAX_PER_NETWORK: usize = 256;
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
const SEND_DEADLINE: Duration = Duration::from_secs(30);
const HEADER_BYTES: usize = 32 * 1024;
const HEADER_COUNT: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long running requests may take after a stop.
const DRAIN: Duration = Duration::from_secs(5);

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

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`, then drains.
    pub async fn run(
        self,
        router: Router,
        proxies: Vec<IpAddr>,
        metrics: Metrics,
        stop: CancellationToken,
    ) {
        let places = Places::new(MAX_CONNECTIONS);
        let mut connections = JoinSet::new();
        while let Some((stream, peer)) = stop.run_until_cancelled(self.accept()).await {
            while connections.try_join_next().is_some() {}
            let ip = peer.ip().to_canonical();
            let limit = match proxies.contains(&ip) {
                true => MAX_CONNECTIONS,
                false => MAX_PER_NETWORK,
            };
            // At a limit a new connection is closed at once: those inside keep their place.
            let Some(place) = places.take(network(ip), limit) else {
                continue;
            };
            let held = (place, Open::new(&metrics.connections));
            connections.spawn(serve(stream, peer, router.clone(), held, stop.clone()));
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN, drained).await.is_err() {
            tracing::warn!("requests did not end in time and are cut off");
        }
    }

    /// An error of `accept` means that the machine has no files or no memory left: pausing is right.
    async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => tracing::warn!(%error, "cannot accept a connection"),
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Serves one connection. Errors are the client's, and are not logged.
async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    _held: (Place<IpAddr>, Open),
    stop: CancellationToken,
) {
    let limited = SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_DEADLINE));
    if let Err(error) = limited.and(stream.set_nodelay(true)) {
        tracing::debug!(%error, "a socket option was refused");
    }
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADER_COUNT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}
