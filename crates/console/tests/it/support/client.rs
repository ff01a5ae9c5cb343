//! A client with a cookie, which speaks HTTP/1.1 as a browser on the console's own pages does.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use svc_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub origin: String,
    pub cookie: Option<String>,
}

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
}

impl Client {
    pub async fn get(&self, path: &str) -> Result<Page> {
        self.send("GET", path, "", "").await
    }

    /// A form, sent as a browser on the console's own pages sends it.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Page> {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let headers = format!(
            "Origin: {}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\n",
            self.origin
        );
        self.send("POST", path, &headers, &form).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Result<Page> {
        let cookie = self.cookie.as_ref();
        let cookie = cookie.map_or_else(String::new, |cookie| format!("Cookie: {cookie}\r\n"));
        let host = self.origin.trim_start_matches("http://");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{cookie}{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
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
