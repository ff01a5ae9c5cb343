//! The port: HTTP/1.1, over TLS if the console has a certificate, otherwise in clear text for a reverse proxy that ends TLS.
//!
//! Anyone may connect before signing in, so everything is limited: the number of connections, the
//! size and the time of a request's head, the time of its body (see `routes`), and how long a client may
//! leave a response unread. On a stop, idle connections close at once, running requests may finish,
//! and live streams end because they watch the same token.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    server::ResolvesServerCert,
    version::{TLS12, TLS13},
};
use svc_common::{
    http::{Limits, Port},
    tls::provider,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    address::{Peer, network},
    slots::Slots,
    state::App,
    telemetry::Open,
};

/// A viewer has one live stream and a few requests open.
const MAX_CONNECTIONS: usize = 4096;
/// Of one network, so that nobody takes all connections. Trusted proxies have no such limit: `clients` counts whom they bring.
const MAX_PER_NETWORK: usize = 256;
const LIMITS: Limits = Limits {
    header_deadline: Duration::from_secs(10),
    header_bytes: 32 * 1024,
    send_deadline: Duration::from_secs(30),
};
/// Until the TLS handshake is complete.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long running requests may take after a stop.
const DRAIN: Duration = Duration::from_secs(5);

/// The TLS settings for the certificate in service.
pub fn acceptor(certificate: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves `router` until the console stops, then drains.
pub async fn serve(
    port: Port,
    tls: Option<TlsAcceptor>,
    router: Router,
    app: App,
) -> anyhow::Result<()> {
    let slots = Slots::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    let stop = app.stop;
    while let Some((stream, peer)) = stop.run_until_cancelled(port.accept(not_accepted)).await {
        while connections.try_join_next().is_some() {}
        let ip = peer.ip().to_canonical();
        let limit = match app.web.trusted_proxies.contain(ip) {
            true => MAX_CONNECTIONS,
            false => MAX_PER_NETWORK,
        };
        // At a limit a new connection is closed at once: the open ones keep their slots.
        let Some(slot) = slots.take(network(ip), limit) else {
            continue;
        };
        let held = (slot, Open::new(&app.metrics.connections));
        let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
        connections.spawn(async move {
            let _held = held;
            handle(stream, peer, tls, router, stop).await;
        });
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
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) {
    let protocol = LIMITS.http1(&stream);
    let Some(tls) = tls else {
        return speak(&protocol, stream, peer, router, stop).await;
    };
    let shaken = timeout(HANDSHAKE, tls.accept(stream));
    if let Some(Ok(Ok(stream))) = stop.run_until_cancelled(shaken).await {
        speak(&protocol, stream, peer, router, stop).await;
    }
}

async fn speak(
    protocol: &http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    stop: CancellationToken,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
    });
    let connection = protocol.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}
