//! gRPC channels, and calls over one HTTP/2 connection.

use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use svc_harness::{PATIENCE, Tls, connect_with};
use svc_sandbox::Identity;
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// A gRPC channel over one connection, which it opens now, and again when it is lost.
pub async fn channel(address: SocketAddr, identity: &Identity) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_static("https://localhost").timeout(PATIENCE);
    channel_with(endpoint, Tls::with(identity).config()?, address).await
}

pub(crate) async fn channel_with(
    endpoint: Endpoint,
    config: ClientConfig,
    address: SocketAddr,
) -> anyhow::Result<Channel> {
    let connector = service_fn(move |_: Uri| {
        let config = config.clone();
        async move { connect_with(config, address).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// One HTTP/2 connection. Unlike a channel it never reconnects, so a test sees its loss.
#[derive(Debug)]
pub struct OneConnection {
    requests: h2::client::SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl OneConnection {
    pub async fn open(tls: &Tls, address: SocketAddr) -> anyhow::Result<Self> {
        Self::over(tls.connect(address).await?).await
    }

    pub async fn over(stream: TlsStream<TcpStream>) -> anyhow::Result<Self> {
        let (requests, connection) = h2::client::handshake(stream).await?;
        Ok(Self {
            requests,
            driver: tokio::spawn(connection),
        })
    }

    /// Calls the health check and returns the `grpc-status` of the answer.
    pub async fn health_status(&mut self) -> anyhow::Result<String> {
        let path = "/grpc.health.v1.Health/Check";
        let answer = self.ask(path, HeaderMap::new(), vec![0; 5]).await?;
        let status = answer.get("grpc-status").context("no grpc-status")?;
        Ok(status.to_str()?.to_owned())
    }

    /// Sends a call with these headers and this body, and returns the trailers of the answer, or
    /// its headers if it has no body.
    pub async fn ask(
        &mut self,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> anyhow::Result<HeaderMap> {
        let asked = async {
            let mut request = grpc_call(path)?;
            request.headers_mut().extend(headers);
            let mut requests = self.requests.clone().ready().await?;
            let (answer, mut sending) = requests.send_request(request, false)?;
            sending.send_data(body.into(), true)?;
            trailers(answer.await?).await
        };
        timeout(PATIENCE, asked).await?
    }

    /// Waits until the server has closed it. The request handle lives until then: without one, h2
    /// would close the connection itself.
    pub async fn closed(self) -> anyhow::Result<()> {
        let Self { requests, driver } = self;
        drop(timeout(PATIENCE, driver).await?);
        drop(requests);
        Ok(())
    }
}

/// The head of a call over a plain HTTP/2 connection.
pub fn grpc_call(path: &str) -> anyhow::Result<Request<()>> {
    let head = Request::post(format!("https://localhost{path}"));
    let head = head.header("content-type", "application/grpc");
    Ok(head.header("te", "trailers").body(())?)
}

async fn trailers(answer: http::Response<h2::RecvStream>) -> anyhow::Result<HeaderMap> {
    let (head, mut body) = answer.into_parts();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    Ok(body.trailers().await?.unwrap_or(head.headers))
}
