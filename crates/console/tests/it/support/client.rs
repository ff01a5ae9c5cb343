//! A client with a cookie, which speaks HTTP/1.1 as a browser on the console's own pages does.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use svc_common::tls::provider;
use svc_sandbox::Identity;
use svc_testkit::{PATIENCE, assert_contains};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

pub const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub origin: String,
    pub cookie: Option<String>,
    /// Set for a client that speaks HTTPS.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A connection, with or without TLS.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

#[derive(Clone, Debug)]
pub struct Page {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Page {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim())
    }

    pub fn has(&self, text: &str) -> bool {
        self.body.contains(text)
    }

    /// The link before `mark`: the rest of its tag, or what follows the tag.
    pub fn link(&self, mark: &str) -> Option<String> {
        let (before, _) = self.body.split_once(mark)?;
        let (_, link) = before.rsplit_once("href=\"")?;
        let (link, _) = link.split_once('"')?;
        Some(link.replace("&#38;", "&").replace("&amp;", "&"))
    }

    /// The hidden fields of its forms.
    pub fn hidden(&self) -> Vec<(&str, &str)> {
        let fields = self.body.split("type=\"hidden\" name=\"").skip(1);
        let fields = fields.filter_map(|field| {
            let (name, rest) = field.split_once("\" value=\"")?;
            Some((name, rest.split_once('"')?.0))
        });
        fields.collect()
    }

    /// Panics, with the whole page, unless it has each of these texts.
    #[track_caller]
    pub fn shows(&self, texts: &[&str]) {
        texts
            .iter()
            .for_each(|text| assert_contains(&self.body, text));
    }
}

impl Client {
    pub async fn get(&self, path: &str) -> Result<Page> {
        self.send("GET", path, "", "").await
    }

    /// The status of a GET.
    pub async fn status(&self, path: &str) -> Result<u16> {
        Ok(self.get(path).await?.status)
    }

    /// A form, sent as a browser on the console's own pages sends it.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Page> {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        let form = form.extend_pairs(fields).finish();
        self.send("POST", path, &self.same_origin(), &form).await
    }

    /// The status of a form's answer.
    pub async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Result<u16> {
        Ok(self.post(path, fields).await?.status)
    }

    /// The headers of the console's own forms.
    pub fn same_origin(&self) -> String {
        let origin = &self.origin;
        format!("Origin: {origin}\r\nSec-Fetch-Site: same-origin\r\n{FORM}")
    }

    /// A new connection, on which a request has begun: without the empty line that ends its head.
    pub async fn begin(&self, request: &str, headers: &str) -> Result<Box<dyn Connection>> {
        let mut stream = self.connect().await?;
        stream
            .write_all(self.head(request, headers).as_bytes())
            .await?;
        Ok(stream)
    }

    /// This client, over TLS to the server with this certificate alone.
    pub fn trusting(mut self, server: &Identity) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(server.cert_der.clone()))?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        self.origin = self.origin.replacen("http://", "https://", 1);
        self.tls = Some(Arc::new(config));
        Ok(self)
    }

    async fn connect(&self) -> Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(self.address).await?;
        let Some(config) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from("localhost")?;
        let connector = TlsConnector::from(config.clone());
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    fn head(&self, request: &str, headers: &str) -> String {
        let cookie = self.cookie.as_ref();
        let cookie = cookie.map_or_else(String::new, |cookie| format!("Cookie: {cookie}\r\n"));
        let (_, host) = self.origin.split_once("://").unwrap_or_default();
        format!("{request} HTTP/1.1\r\nHost: {host}\r\n{cookie}{headers}")
    }

    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Result<Page> {
        let head = self.head(&format!("{method} {path}"), headers);
        let length = body.len();
        let request = format!("{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let exchange = async {
            let mut stream = self.connect().await?;
            // A server that refuses a large body closes while it is sent.
            drop(stream.write_all(request.as_bytes()).await);
            let (mut answer, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
            // Some servers keep the connection open although they were asked to close it.
            while !is_complete(&answer) {
                match stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => answer.extend_from_slice(&chunk[..length]),
                }
            }
            parse(&answer)
        };
        timeout(PATIENCE, exchange).await?
    }

    pub fn keep_cookie(&mut self, page: &Page) {
        let cookie = page
            .header("set-cookie")
            .and_then(|text| text.split(';').next());
        self.cookie = cookie.map(str::to_owned);
    }
}

/// Whether the body has the length that the head announces.
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: Option<usize> = length.and_then(|length| length.trim().parse().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

fn parse(answer: &[u8]) -> Result<Page> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no end of the head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Ok(Page {
        status,
        head: head.to_owned(),
        body,
    })
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        body.push_str(after.get(..size).unwrap_or_default());
        rest = after.get(size + 2..).unwrap_or_default();
    }
    body
}
