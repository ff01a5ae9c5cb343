//! HTTP proxies: a tunnel to the service by the method CONNECT (RFC 9110, 9.3.6).
//!
//! The proxy looks the service's name up, so a host without DNS of its own can use one. TLS
//! runs inside the tunnel, from the agent to the service: the proxy sees names and amounts,
//! but neither the JWT nor the samples.

use std::{error::Error, fmt, io, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::{
    client::conn::http1,
    upgrade::{self, Parts},
};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::Address;

const DEFAULT_PORT: u16 = 80;
/// The longest head of an answer that the agent reads.
const MAX_HEAD: usize = 8 * 1024;

/// A proxy, and the credentials for it.
#[derive(Clone)]
pub struct Proxy {
    pub(super) address: Address,
    /// `user:password`.
    credentials: Option<SecretString>,
}

impl FromStr for Proxy {
    type Err = String;

    /// `host:port` or `http://user:password@host:port`. The error never quotes the text.
    fn from_str(text: &str) -> Result<Self, String> {
        let given = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err("is not an HTTP proxy: say http://host:port".into()),
        };
        let given = given.strip_suffix('/').unwrap_or(given);
        let (credentials, place) = match given.rsplit_once('@') {
            None => (None, given),
            Some((credentials, place)) => (Some(decoded(credentials)?), place),
        };
        Ok(Self {
            address: Address::parse(place, DEFAULT_PORT)?,
            credentials,
        })
    }
}

fn decoded(credentials: &str) -> Result<SecretString, String> {
    let decoded = percent_decode_str(credentials).decode_utf8();
    let decoded = decoded.map_err(|_| "has credentials that are not valid UTF-8")?;
    match decoded.contains(char::is_control) {
        true => Err("has control characters in its credentials".into()),
        false => Ok(decoded.into_owned().into()),
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl Proxy {
    /// Asks for a tunnel; returns the stream, which leads to `target` then. The service sends
    /// nothing before the agent has begun TLS, so bytes that follow the answer cannot belong to
    /// the tunnel.
    pub(super) async fn tunnel(
        &self,
        stream: TcpStream,
        target: &Address,
    ) -> io::Result<TcpStream> {
        let request = self.request(target).map_err(io::Error::other)?;
        let (mut requests, connection) = http1::Builder::new()
            .title_case_headers(true)
            .ignore_invalid_headers_in_responses(true)
            .max_buf_size(MAX_HEAD)
            .handshake::<_, String>(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let _driver = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
        let answer = requests.send_request(request).await.map_err(failed)?;
        match answer.status() {
            status if status.is_success() => {}
            StatusCode::PROXY_AUTHENTICATION_REQUIRED if self.credentials.is_none() => {
                return Err(io::Error::other(
                    "it wants a user and a password: https_proxy = \"http://user:password@host:port\"",
                ));
            }
            status => return Err(io::Error::other(format!("it answered {status}"))),
        }
        let tunnel = upgrade::on(answer).await.map_err(failed)?;
        match tunnel.downcast::<TokioIo<TcpStream>>() {
            Ok(Parts { io, read_buf, .. }) if read_buf.is_empty() => Ok(io.into_inner()),
            _ => Err(io::Error::other("it sent bytes before the tunnel")),
        }
    }

    /// The credentials are marked as sensitive, so that no layer below logs them.
    fn request(&self, target: &Address) -> http::Result<Request<String>> {
        let place = target.to_string();
        let mut request = Request::builder().method(Method::CONNECT).uri(&place);
        request = request.header(header::HOST, &place);
        if let Some(credentials) = &self.credentials {
            let encoded = BASE64_STANDARD.encode(credentials.expose_secret());
            let mut basic = HeaderValue::try_from(format!("Basic {encoded}"))?;
            basic.set_sensitive(true);
            request = request.header(header::PROXY_AUTHORIZATION, basic);
        }
        request.body(String::new())
    }
}

/// Says what went wrong, with the innermost cause.
fn failed(error: hyper::Error) -> io::Error {
    let text = match error.source() {
        _ if error.is_parse_too_large() => "its answer is too long".to_owned(),
        _ if error.is_parse() => "it does not speak HTTP".to_owned(),
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    io::Error::other(text)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn a_proxy_is_a_host_a_port_and_optional_credentials() {
        for (text, shown, credentials) in [
            ("proxy", "proxy:80", None),
            ("proxy:3128", "proxy:3128", None),
            ("http://10.0.0.1:3128/", "10.0.0.1:3128", None),
            ("HTTP://[::1]:3128", "[::1]:3128", None),
            ("http://u:p%40%3a@proxy", "proxy:80", Some("u:p@:")),
        ] {
            let proxy: Proxy = text.parse().unwrap();
            let found = proxy.credentials.as_ref().map(ExposeSecret::expose_secret);
            assert_eq!((proxy.to_string().as_str(), found), (shown, credentials));
            assert!(!format!("{proxy:?}").contains("p@"), "{proxy:?}");
        }
        for bad in [
            "",
            "https://proxy:3128",
            "socks5://proxy",
            "http://",
            "u:secret%0d@proxy",
            "u:secret@a b",
            "proxy:0",
        ] {
            let refused = bad.parse::<Proxy>().unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    /// Asks a proxy that gives this answer for a tunnel.
    async fn asked(answer: String) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let serving = async {
            let (mut client, _) = listener.accept().await.unwrap();
            assert!(client.read(&mut [0; 1024]).await.unwrap() > 0);
            client.write_all(answer.as_bytes()).await.unwrap();
        };
        let proxy: Proxy = place.to_string().parse().unwrap();
        let target = "ingest.example".parse().unwrap();
        let asking = async {
            let stream = TcpStream::connect(place).await.unwrap();
            proxy.tunnel(stream, &target).await
        };
        let (tunnel, ()) = tokio::join!(asking, serving);
        tunnel.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_answer_opens_the_tunnel_or_says_why_not() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(MAX_HEAD));
        for (answer, said) in [
            ("HTTP/1.0 200 OK\r\n\r\n", None),
            ("HTTP/1.1 299 x\r\nno header\r\n\r\n", None),
            ("HTTP/1.1 200 OK\r\n\r\nx", Some("bytes before the tunnel")),
            (
                "HTTP/1.1 503 No\r\n\r\n",
                Some("answered 503 Service Unavailable"),
            ),
            (
                "HTTP/1.1 407 No\r\n\r\n",
                Some("wants a user and a password"),
            ),
            ("SSH-2.0-x\r\n\r\n", Some("does not speak HTTP")),
            ("", Some("closed")),
            (long.as_str(), Some("too long")),
        ] {
            match (asked(answer.into()).await, said) {
                (Ok(()), None) => {}
                (Err(text), Some(said)) if text.contains(said) => {}
                (other, _) => panic!("{other:?} after {:?}", &answer[..answer.len().min(40)]),
            }
        }
    }
}
