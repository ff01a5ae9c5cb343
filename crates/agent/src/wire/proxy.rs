//! HTTP proxies: a tunnel to the service by the method CONNECT (RFC 9110, 9.3.6).
//!
//! The proxy looks the service's name up, so a host without DNS of its own can use one. TLS
//! runs inside the tunnel, from the agent to the service: the proxy sees names and amounts,
//! but neither the JWT nor the samples.

use std::{fmt, io, str::FromStr};

use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Address, address::split};

const DEFAULT_PORT: u16 = 80;
/// The longest head of an answer that the agent reads.
const MAX_HEAD: usize = 8 * 1024;
/// How much of the proxy's words an error shows.
const MAX_SHOWN: usize = 120;

/// A proxy, and the credentials for it.
#[derive(Clone)]
pub struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
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
        let (host, port) = split(place, DEFAULT_PORT)?;
        // The parser of addresses knows which names are well formed.
        place.parse::<Address>()?;
        Ok(Self {
            host: host.into(),
            port,
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
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl Proxy {
    /// Asks for a tunnel. After `Ok`, the stream leads to `target`.
    pub(super) async fn tunnel(&self, stream: &mut TcpStream, target: &Address) -> io::Result<()> {
        stream.write_all(self.request(target).as_bytes()).await?;
        let head = head(stream).await?;
        match status(&head) {
            Some(200..=299) => Ok(()),
            Some(407) if self.credentials.is_none() => Err(io::Error::other(
                "it wants a user and a password: https_proxy = \"http://user:password@host:port\"",
            )),
            Some(_) => Err(io::Error::other(format!("it answered {}", shown(&head)))),
            None => Err(io::Error::other("it does not speak HTTP")),
        }
    }

    fn request(&self, target: &Address) -> String {
        let authorization = self.credentials.as_ref().map(|credentials| {
            let encoded = BASE64_STANDARD.encode(credentials.expose_secret());
            format!("Proxy-Authorization: Basic {encoded}\r\n")
        });
        let authorization = authorization.unwrap_or_default();
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n")
    }
}

/// Reads to the empty line. The service sends nothing before the agent has begun TLS, so more
/// bytes cannot belong to the tunnel.
async fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = stream.read(&mut part).await?;
        if length == 0 {
            return Err(io::Error::other("it closed the connection"));
        }
        head.extend(&part[..length]);
        if head.len() > MAX_HEAD {
            return Err(io::Error::other("its answer is too long"));
        }
    }
    match head.ends_with(b"\r\n\r\n") {
        true => Ok(head),
        // A refusal may have a body.
        false if !matches!(status(&head), Some(200..=299)) => Ok(head),
        false => Err(io::Error::other("it sent bytes before the tunnel")),
    }
}

/// `HTTP/1.1 200 Connection established`
fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    let code = str::from_utf8(rest.get(2..5)?).ok()?;
    code.parse().ok()
}

/// The status line without the version.
fn shown(head: &[u8]) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line.get(9..).unwrap_or_default());
    let text = text.chars().filter(|letter| !letter.is_control());
    text.take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn a_request_names_the_service_and_carries_the_credentials() {
        let target: Address = "ingest.example".parse().unwrap();
        let proxy: Proxy = "http://Aladdin:open%20sesame@proxy".parse().unwrap();
        assert_eq!(
            proxy.request(&target),
            "CONNECT ingest.example:9443 HTTP/1.1\r\nHost: ingest.example:9443\r\n\
             Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"
        );
    }

    #[test]
    fn the_status_is_read_from_the_first_line() {
        assert_eq!(status(b"HTTP/1.0 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.1 407 Authenticate\r\n\r\n"), Some(407));
        assert_eq!(status(b"SSH-2.0-x\r\n\r\n"), None);
        assert_eq!(shown(b"HTTP/1.1 503 no\x1b[2Jway\r\nA: b"), "503 no[2Jway");
    }

    proptest! {
        #[test]
        fn no_answer_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            status(&bytes);
            prop_assert!(shown(&bytes).chars().count() <= MAX_SHOWN);
        }
    }
}
