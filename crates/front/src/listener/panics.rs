//! A panic in a handler fails that one stream: it is logged once, and the client gets INTERNAL, whether the
//! panic came before the response headers or in the middle of the body. The connection and its other
//! streams continue.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use tonic::{Status, body::Body, service::Routes};
use tower::ServiceExt;

/// The answer of the routes, or `internal` if they panic. Its body may panic later: see [`Guarded`].
///
/// Asserting unwind safety is sound here: what panicked is dropped and never used again, and what it shared
/// with others is behind locks, whose users handle poisoning.
pub(super) async fn caught(
    routes: Routes,
    request: Request<Incoming>,
    internal: fn() -> Status,
) -> Response<Body> {
    match AssertUnwindSafe(routes.oneshot(request))
        .catch_unwind()
        .await
    {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(panic) => {
            log(&*panic);
            internal().into_http()
        }
    }
}

/// A response body. If it panics, it ends with the trailers of `internal`.
#[derive(Debug)]
pub(super) struct Guarded {
    pub body: Body,
    pub internal: fn() -> Status,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.body).poll_frame(cx)));
        polled.unwrap_or_else(|panic| {
            log(&*panic);
            self.body = Body::empty();
            Poll::Ready(Some(trailers(&(self.internal)())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut map = HeaderMap::new();
    status.add_header(&mut map)?;
    Ok(Frame::trailers(map))
}

fn log(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let payload = text.unwrap_or("of another type than text");
    tracing::error!(payload, "a handler panicked: its stream ends with INTERNAL");
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;
    use futures_util::{StreamExt, stream};
    use h2::{RecvStream, client::SendRequest};
    use http_body_util::StreamBody;
    use hyper::{server::conn::http2, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tonic::Code;

    use super::*;

    /// `/steady` says one word, then another once it is asked for; the others panic.
    async fn answer(request: axum::extract::Request) -> axum::response::Response {
        let word = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"word")));
        match request.uri().path() {
            "/early" => panic!("before {}", "the headers"),
            "/late" => {
                let words = stream::iter([word()]).chain(stream::once(async { panic!("late") }));
                axum::body::Body::new(StreamBody::new(words)).into_response()
            }
            _ => {
                let asked = http_body_util::BodyStream::new(request.into_body());
                let words = stream::iter([word()]).chain(asked.take(1).map(move |_| word()));
                axum::body::Body::new(StreamBody::new(words)).into_response()
            }
        }
    }

    fn internal() -> Status {
        Status::internal("a fault")
    }

    async fn client() -> SendRequest<Bytes> {
        let (near, far) = tokio::io::duplex(4096);
        let routes = Routes::from(axum::Router::new().fallback(answer));
        let service = service_fn(move |request| {
            let routes = routes.clone();
            async move {
                let response = caught(routes, request, internal).await;
                Ok::<_, Infallible>(response.map(|body| Guarded { body, internal }))
            }
        });
        let server = http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(far), service));
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(connection);
        client.ready().await.unwrap()
    }

    async fn ask(
        client: &mut SendRequest<Bytes>,
        path: &str,
    ) -> (h2::SendStream<Bytes>, HeaderMap, RecvStream) {
        let request = Request::post(format!("http://localhost{path}"));
        let (response, body) = client
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        let (head, words) = response.await.unwrap().into_parts();
        (body, head.headers, words)
    }

    fn assert_internal(map: &HeaderMap) {
        let status = Status::from_header_map(map).expect("a status");
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "a fault", "no details of the panic");
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_stream_and_disturbs_no_other() {
        let mut client = client().await;
        let (mut asking, _, mut steady) = ask(&mut client, "/steady").await;
        assert_eq!(steady.data().await.unwrap().unwrap(), "word");

        let (_, early, _) = ask(&mut client, "/early").await;
        assert_internal(&early);
        let (_, _, mut late) = ask(&mut client, "/late").await;
        assert_eq!(late.data().await.unwrap().unwrap(), "word");
        assert!(late.data().await.is_none());
        assert_internal(&late.trailers().await.unwrap().unwrap());

        asking
            .send_data(Bytes::from_static(b"another"), true)
            .unwrap();
        assert_eq!(steady.data().await.unwrap().unwrap(), "word");
        while let Some(rest) = steady.data().await {
            assert!(rest.unwrap().is_empty(), "it ends as it should");
        }
        let (_, again, _) = ask(&mut client, "/early").await;
        assert_internal(&again);
    }
}
