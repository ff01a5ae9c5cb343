//! One GET of the JWKS document, bounded in time and size.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::config::Jwks;

const DEADLINE: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 64 * 1024;

pub async fn fetch(settings: &Jwks) -> anyhow::Result<Vec<u8>> {
    timeout(DEADLINE, connect_and_get(settings))
        .await
        .context("no answer in time")?
}

async fn connect_and_get(settings: &Jwks) -> anyhow::Result<Vec<u8>> {
    let url = &settings.url;
    let host = url.host_str().context("no host")?;
    let port = url.port_or_known_default().context("no port")?;
    let bare = host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((bare, port)).await?;
    match url.scheme() {
        "https" => {
            let name = ServerName::try_from(bare.to_owned())?;
            let connector = TlsConnector::from(Arc::new(tls(settings.ca.as_deref())?));
            get(settings, connector.connect(name, stream).await?).await
        }
        _ => get(settings, stream).await,
    }
}

fn tls(ca: Option<&str>) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate?)?;
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

async fn get(
    settings: &Jwks,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<Vec<u8>> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    let url = &settings.url;
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let request = Request::get(target)
        .header(header::HOST, url.authority())
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())?;
    // The task ends when the sender is dropped, at the latest.
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    ensure!(status.is_success(), "the answer is {status}");
    let body = Limited::new(response.into_body(), MAX_BYTES).collect();
    let body = body.await.map_err(|error| anyhow::anyhow!(error))?;
    driver.abort();
    Ok(body.to_bytes().to_vec())
}
