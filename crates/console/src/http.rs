//! The port: plain HTTP/1.1 behind a reverse proxy that ends TLS.
//!
//! Anyone may connect before signing in, so everything is limited: the number of connections, the
//! size and the time of a request's head, the time of its body (see `routes`), and how long a client may
//! leave a response unread. On a stop, idle connections close at once, running requests may finish,
//! and live streams end because they watch the same token.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{Router, extract::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use svc_common::http::{Limits, Port};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    address::{Peer, network},
    slots::{Slot, Slots},
    state::App,
    telemetry::Open,
};

/// A viewer has one live stream and a few requests open.
const MAX_CONNECTIONS: usize = 4096;
/// Of one network, so that nobody takes all connections. Trusted proxies have no such limit.
const MAX_PER_NETWORK: usize = 256;
const LIMITS: Limits = Limits {
    header_deadline: Duration::from_secs(10),
    header_bytes: 32 * 1024,
    send_deadline: Duration::from_secs(30),
};
/// How long running requests may take after a stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves `router` until the console stops, then drains.
pub async fn serve(port: Port, router: Router, app: App) -> anyhow::Result<()> {
    let slots = Slots::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    let stop = app.stop;
    while let Some((stream, peer)) = stop.run_until_cancelled(port.accept(not_accepted)).await {
        while connections.try_join_next().is_some() {}
        let ip = peer.ip().to_canonical();
        let limit = match app.web.trusted_proxies.contains(&ip) {
            true => MAX_CONNECTIONS,
            false => MAX_PER_NETWORK,
        };
        // At a limit a new connection is closed at once: the open ones keep their slots.
        let Some(slot) = slots.take(network(ip), limit) else {
            continue;
        };
        let held = (slot, Open::new(&app.metrics.connections));
        connections.spawn(handle(stream, peer, router.clone(), held, stop.clone()));
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("requests did not end in time and are cut off");
    }
    Ok(())
}

fn not_accepted(_: &TcpListener, error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
}

/// Serves one connection. Errors are the client's, and are not logged.
async fn handle(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    _held: (Slot<IpAddr>, Open),
    stop: CancellationToken,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
    });
    let connection = LIMITS
        .http1(&stream)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}
