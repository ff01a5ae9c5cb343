//! The gRPC port: an accept loop, TLS with a mandatory client certificate, and HTTP/2 with every limit set.
//!
//! tonic's own server is not used: it has no deadline for TLS or for the first request, spins when file
//! descriptors run out, and leaves two of HTTP/2's protections off (docs/decisions.md, D67).
//!
//! In reading order: `gate` (places and permits), `proxy_protocol` (addresses behind a load balancer), `connection` (one connection's life), `activity` (is it idle or
//! stalled), `ending` (how its requests end), `tracked_body` (what both learn from a response), `meter`, `byte_budget` and `write_deadline` (how fast a client is read, how long it may leave data unread),
//! `panics`, `shedding`, then `tls`, `verifier` and `certificate_log` for
//! certificates.

mod activity;
mod byte_budget;
mod certificate_log;
mod connection;
mod ending;
mod gate;
mod issuer;
mod limits;
mod meter;
mod panics;
mod proxy_protocol;
mod shedding;
mod tls;
mod tracked_body;
mod verifier;
mod write_deadline;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use http::HeaderMap;
use svc_common::networks::Networks;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, service::Routes};

pub use issuer::{is_signed_by, is_trusted_by, which_have_key};
pub use limits::Limits;
pub use shedding::Shedding;
pub use tls::{ClientCa, acceptor};

use crate::metrics::ListenerMetrics;
use byte_budget::Strangers;
use connection::Connection;
use gate::Gate;

/// The pause between failures to accept.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The listener's own refusals, and how it names methods and refusals in its metrics. The caller supplies them, because the
/// listener does not know the contract.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    /// For a client key that has as many connections as one key may have.
    pub too_many_connections: fn() -> Status,
    /// For an unproven connection that has as many calls in progress as it may have.
    pub too_many_calls: fn() -> Status,
    /// For a handler that panicked.
    pub internal: fn() -> Status,
    /// The name of a path's method. A closed set: clients choose the path.
    pub method: fn(&str) -> &'static str,
    /// The reason of the refusal in the headers or trailers of a response.
    pub reason: fn(&HeaderMap) -> Option<&'static str>,
}

/// The bound port, before it serves.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    limits: Limits,
    metrics: ListenerMetrics,
    proxies: Networks,
}

impl Listener {
    pub async fn bind(
        address: SocketAddr,
        limits: Limits,
        metrics: ListenerMetrics,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit these. By default the kernel would grow them to megabytes.
        socket.set_recv_buffer_size(limits::tcp::RECEIVE_BUFFER)?;
        socket.set_send_buffer_size(limits::tcp::SEND_BUFFER)?;
        socket.bind(&address.into())?;
        socket.listen(limits.backlog)?;
        Ok(Self {
            socket: TcpListener::from_std(socket.into())?,
            limits,
            metrics,
            proxies: Networks::default(),
        })
    }

    /// Connections from these networks begin with a header of the PROXY protocol.
    pub fn behind(self, proxies: Networks) -> Self {
        Self { proxies, ..self }
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`. Then the open connections may finish within `drain`.
    pub async fn run(
        self,
        tls: TlsAcceptor,
        routes: Routes,
        refusals: Refusals,
        stop: CancellationToken,
        drain: Duration,
    ) -> anyhow::Result<()> {
        let connections = TaskTracker::new();
        let gate = Arc::new(Gate::new(self.limits, self.metrics.clone()));
        let abort = CancellationToken::new();
        let connection = Arc::new(Connection {
            tls,
            routes: routes.prepare(),
            gate,
            limits: self.limits,
            proxies: self.proxies.clone(),
            refusals,
            strangers: Arc::new(Strangers::new()),
            stop: stop.clone(),
            abort: abort.clone(),
        });
        stop.run_until_cancelled(self.accept_all(&connections, &connection))
            .await;
        drop(self.socket);
        connections.close();
        if tokio::time::timeout(drain, connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                connections = connections.len(),
                "ending the connections that did not finish in time"
            );
            abort.cancel();
            connections.wait().await;
        }
        Ok(())
    }

    async fn accept_all(&self, connections: &TaskTracker, connection: &Arc<Connection>) {
        let mut shedding = Shedding::new();
        loop {
            let (stream, address) = self.accept(&mut shedding).await;
            let Some(place) = connection.gate.enter() else {
                continue; // Full: the client sees a closed connection and retries.
            };
            connections.spawn(connection.clone().serve(stream, address, place));
        }
    }

    /// The next connection. `accept` fails either because a client has left already, or because the machine
    /// is out of file descriptors or memory. Waiting is right for both, and keeps the loop from spinning.
    async fn accept(&self, shedding: &mut Shedding) -> (TcpStream, SocketAddr) {
        let mut wait = SHORTEST_WAIT;
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    self.metrics.accept_errors.inc();
                    let shed = shedding.close_waiting(&self.socket, &error);
                    self.metrics.shed.inc_by(shed);
                    if shed > 0 {
                        wait = SHORTEST_WAIT; // More may be waiting.
                    }
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }
}
