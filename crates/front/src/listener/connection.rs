//! One connection, from its first byte to its last: TLS, then HTTP/2, each with deadlines. The service closes
//! it when it is idle or too old, when it has proven nothing and its short life is over or its place is needed,
//! or when the service stops.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use svc_common::networks::Networks;
use tokio::{
    net::TcpStream,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, service::Routes};

use super::{
    Limits, Refusals,
    activity::Activity,
    byte_budget::Strangers,
    certificate_log,
    ending::Ending,
    gate::Gate,
    limits::{TLS_BUFFER, http2 as settings},
    meter::{Framed, Metered},
    panics::{Guarded, caught},
    proxy_protocol,
    tracked_body::TrackedBody,
    write_deadline::WriteDeadline,
};
use crate::{
    metrics::Handshake,
    peer::{ClientKey, Peer},
    places::{Place, Stage, Standing},
};

/// How long a connection without a request in progress may take to receive its GOAWAY.
const GOAWAY_TIME: Duration = Duration::from_secs(1);

/// An unproven connection whose short life is over stays while a call with a valid token is in progress. This is how often that
/// is checked.
const VOUCHED_PAUSE: Duration = Duration::from_secs(1);

type Tls = Box<TlsStream<Metered>>;

/// What all connections of the port share.
pub(super) struct Connection {
    pub tls: TlsAcceptor,
    pub routes: Routes,
    pub gate: Arc<Gate>,
    pub limits: Limits,
    pub proxies: Networks,
    pub refusals: Refusals,
    pub strangers: Arc<Strangers>,
    pub stop: CancellationToken,
    /// Ends the connections that have not finished after `stop`.
    pub abort: CancellationToken,
}

/// A connection's task keeps the space of its largest state for the connection's whole life. States that are
/// large, or needed only at the beginning, are therefore boxed.
impl Connection {
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        place: Place,
    ) {
        let secured = Box::pin(self.secure(stream, address, &place)).await;
        let Some((stream, key, address)) = secured else {
            return;
        };
        let closing = CancellationToken::new();
        let peer = Peer {
            key,
            address,
            closing,
            standing: place.standing().clone(),
        };
        let activity = Arc::new(Activity::default());
        let key_permit = self.gate.enter_key(&peer, &activity);
        let (routes, age) = match key_permit {
            Some(_) => (self.routes.clone(), self.limits.age),
            None => (
                refuse_all(self.refusals.too_many_connections),
                Duration::ZERO,
            ),
        };
        self.serve_http2(stream, peer, activity, routes, age, &place)
            .await;
        drop((key_permit, place));
    }

    /// The TLS handshake, within its deadline. Its outcome is counted.
    async fn secure(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: &Place,
    ) -> Option<(Tls, ClientKey, SocketAddr)> {
        let handshake = self.handshake(stream, address, place.standing());
        let handshake = tokio::select! {
            handshake = timeout(self.limits.handshake_deadline, handshake) => handshake,
            () = place.evicted() => return None,
            () = self.stop.cancelled() => return None,
        };
        let secured = handshake.unwrap_or(Err(Handshake::Timeout));
        let outcome = secured.as_ref().err().copied().unwrap_or(Handshake::Ok);
        self.gate.metrics.handshake(outcome);
        secured.ok()
    }

    /// A permit limits how many handshakes compute their expensive part, the server's signature, at the same
    /// time, so that a storm of handshakes shares the CPU with live streams. No permit is held while waiting
    /// for a client, so slow clients do not delay others.
    async fn handshake(
        &self,
        mut stream: TcpStream,
        mut address: SocketAddr,
        standing: &Standing,
    ) -> Result<(Tls, ClientKey, SocketAddr), Handshake> {
        configure(&stream);
        if self.proxies.contain(address.ip()) {
            let named = proxy_protocol::client(&mut stream, address).await;
            address = named.map_err(|_| Handshake::NoProxyHeader)?;
        }
        let failed = |error: std::io::Error| {
            certificate_log::report(address, &error);
            Handshake::of(&error)
        };
        let stream = WriteDeadline::new(stream, self.limits.send_deadline);
        let metered = Metered::new(stream, standing.clone(), self.strangers.clone());
        let hello = LazyConfigAcceptor::new(Default::default(), metered);
        let hello = hello.await.map_err(failed)?;
        standing.reach(Stage::Served);
        let permit = self.gate.handshake_permit().await;
        yield_now().await;
        let accept = hello.into_stream(self.tls.config().clone());
        drop(permit);
        standing.reach(Stage::Secured);
        let mut stream = Box::new(accept.await.map_err(failed)?);
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        let key = client_key(&stream).ok_or(Handshake::BadCertificate)?;
        Ok((stream, key, address))
    }

    async fn serve_http2(
        &self,
        stream: Tls,
        peer: Peer,
        activity: Arc<Activity>,
        routes: Routes,
        age: Duration,
        place: &Place,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            let (gate, path) = (self.gate.clone(), request.uri().path());
            let ending = Ending::begin(gate, path, self.refusals);
            let crowded = activity.running() >= self.limits.unproven_calls;
            let routes = match crowded && !peer.standing.is_proven() {
                false => routes.clone(),
                true => refuse_all(self.refusals.too_many_calls),
            };
            let answered = caught(routes, with_peer(request, &peer), self.refusals.internal);
            let answered = answer(answered, self.limits, &peer.standing);
            tracked(answered, activity.clone(), ending, self.refusals.internal)
        });
        let stream = TokioIo::new(Framed::new(stream));
        let mut http2 = Box::pin(self.builder().serve_connection(stream, service));
        let ending = async {
            tokio::select! {
                farewell = self.time_to_go(&activity, &peer, age) => Some(farewell),
                () = self.cut_off(place) => None,
            }
        };
        let farewell = tokio::select! {
            _ended = &mut http2 => return,
            () = activity.stalled(self.limits.send_deadline) => return,
            farewell = when_woken(ending) => farewell,
        };
        let Some(farewell) = farewell else {
            return;
        };
        if activity.seen() {
            peer.closing.cancel();
            http2.as_mut().graceful_shutdown();
            let farewell = match activity.none_running() {
                true => farewell.min(GOAWAY_TIME),
                false => farewell,
            };
            tokio::select! {
                _ended = timeout(farewell, http2) => {}
                () = self.cut_off(place) => {}
            }
        }
    }

    /// Returns when the connection should end at once.
    async fn cut_off(&self, place: &Place) {
        tokio::select! {
            () = self.abort.cancelled() => {}
            () = place.evicted() => {}
        }
    }

    /// Returns when the connection should end: the service stops, the client sent no request or has been
    /// idle, the connection has reached its maximum age, or a newer one of its key has replaced it. The result is
    /// how long its requests may take to finish.
    async fn time_to_go(&self, activity: &Activity, peer: &Peer, age: Duration) -> Duration {
        tokio::select! {
            () = self.stop.cancelled() => self.limits.farewell,
            () = peer.closing.cancelled() => GOAWAY_TIME,
            farewell = self.aged(&peer.standing, age) => farewell,
            () = activity.idle(self.limits.first_request_deadline, self.limits.idle) => GOAWAY_TIME,
        }
    }

    /// Returns at the end of the connection's life, which is short while it is unproven. A call with a valid token has its own
    /// deadline, which may be later.
    async fn aged(&self, standing: &Standing, age: Duration) -> Duration {
        let age = age
            .mul_f64(rand::random_range(0.8..1.2))
            .max(self.limits.first_request_deadline);
        let mut short = age.min(self.limits.unproven_life);
        while timeout(short, standing.proven()).await.is_err() {
            if !standing.is_vouched() {
                return GOAWAY_TIME;
            }
            short = VOUCHED_PAUSE;
        }
        tokio::time::sleep(age).await;
        self.limits.farewell
    }

    fn builder(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams_per_connection)
            .max_pending_accept_reset_streams(settings::PENDING_ACCEPT_RESETS)
            .max_local_error_reset_streams(settings::LOCAL_ERROR_RESETS)
            .max_header_list_size(settings::HEADER_LIST)
            .max_frame_size(settings::FRAME)
            .initial_stream_window_size(settings::STREAM_WINDOW)
            .initial_connection_window_size(settings::CONNECTION_WINDOW)
            .max_send_buf_size(settings::SEND_BUFFER)
            .keep_alive_interval(settings::KEEPALIVE_INTERVAL)
            .keep_alive_timeout(settings::KEEPALIVE_TIMEOUT);
        builder
    }
}

/// The answer to one request, within the deadline. It is noted in the connection's standing.
fn answer(
    answered: impl Future<Output = Response<Body>> + Send + 'static,
    limits: Limits,
    standing: &Standing,
) -> impl Future<Output = Response<Body>> + Send + 'static {
    let began = Instant::now();
    let standing = standing.clone();
    async move {
        let mut answered = pin!(answered);
        let mut response = timeout_at(began + limits.response_deadline, &mut answered).await;
        if response.is_err() && standing.is_vouched() {
            response = timeout_at(began + limits.vouched_deadline, answered).await;
        }
        let response = response.unwrap_or_else(|_| {
            Status::deadline_exceeded("the request did not arrive, or was not answered, in time")
                .into_http()
        });
        standing.answered();
        response
    }
}

/// One request, which counts until its response body has ended. Boxed, because hyper keeps the space of this
/// future for as long as the body lasts.
fn tracked(
    answered: impl Future<Output = Response<Body>> + Send + 'static,
    activity: Arc<Activity>,
    mut ending: Ending,
    internal: fn() -> Status,
) -> BoxFuture<'static, Result<Response<TrackedBody>, Infallible>> {
    let request = Activity::begin(activity);
    Box::pin(async move {
        let response = answered.await;
        ending.see(response.headers());
        Ok(response.map(|body| TrackedBody {
            body: Guarded { body, internal },
            request,
            ending,
        }))
    })
}

/// Waits for `future`, and polls it only when it was woken itself, not whenever its task is. A connection's task is woken for
/// every frame, and each poll of what may end a connection takes locks that all connections share.
async fn when_woken<F: Future>(future: F) -> F::Output {
    let mut alone = FuturesUnordered::from_iter([future]);
    alone.select_next_some().await
}

fn with_peer(mut request: Request<Incoming>, peer: &Peer) -> Request<Incoming> {
    request.extensions_mut().insert(peer.clone());
    request
}

/// Routes that answer every request with `refusal`.
fn refuse_all(refusal: fn() -> Status) -> Routes {
    let refuse = move || async move { refusal().into_http::<axum::body::Body>() };
    Routes::from(axum::Router::new().fallback(refuse))
}

fn client_key(stream: &Tls) -> Option<ClientKey> {
    let (_, session) = stream.get_ref();
    ClientKey::of(session.peer_certificates()?.first()?).ok()
}

/// Best effort: a connection works without these options too.
fn configure(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(settings::KEEPALIVE_INTERVAL);
    let results = [
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
        socket.set_tcp_user_timeout(Some(settings::TCP_USER_TIMEOUT)),
    ];
    if let Some(error) = results.into_iter().find_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
}
