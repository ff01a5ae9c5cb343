//! A plain HTTP/1.1 client, and the values on `/metrics`.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{PATIENCE, eventually};

/// A parsed HTTP response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let (head, body) = text.split_once("\r\n\r\n").context("no end of the head")?;
        let status = head.split(' ').nth(1).context("no status")?;
        Ok(Self {
            status: status.parse()?,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }
}

pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    http(address, &format!("GET {path} HTTP/1.1\r\n")).await
}

/// Sends a request line and headers (`Host` and `Connection: close` are added)
/// and reads until the server closes.
pub async fn http(address: SocketAddr, head: &str) -> anyhow::Result<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("{head}Host: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Answer::parse(&String::from_utf8(answer)?)
    };
    timeout(PATIENCE, exchange).await?
}

/// The value of a metric, without its prefix `svc_ingest_`, summed over its labels; 0 if it is not
/// on the page.
pub async fn metric(address: SocketAddr, name: &str) -> anyhow::Result<f64> {
    let page = get(address, "/metrics").await?.body;
    let value = |line: &str| {
        let rest = line.strip_prefix("svc_ingest_").unwrap_or(line);
        let rest = rest.strip_prefix(name)?;
        let number = rest
            .starts_with([' ', '{'])
            .then(|| rest.rsplit(' ').next());
        number.flatten()?.parse::<f64>().ok()
    };
    Ok(page.lines().filter_map(value).sum())
}

/// Waits until `/healthz` answers with this status and a text that begins so, and returns the text.
pub async fn health_becomes(
    address: SocketAddr,
    status: u16,
    text: &str,
) -> anyhow::Result<String> {
    let mut last = None;
    let answered = eventually("the health check answers", async || {
        last = get(address, "/healthz").await.ok();
        let found = last.as_ref();
        found.is_some_and(|last| last.status == status && last.body.starts_with(text))
    });
    let answered = answered.await;
    answered.with_context(|| format!("{last:?}, not {status} {text:?}"))?;
    Ok(last.map(|last| last.body).unwrap_or_default())
}

/// Waits until a metric has such a value.
pub async fn metric_becomes(
    address: SocketAddr,
    name: &str,
    is: impl Fn(f64) -> bool,
) -> anyhow::Result<()> {
    eventually(name, async || metric(address, name).await.is_ok_and(&is)).await
}

/// How often a transaction has run on an instance.
pub async fn transaction_count(address: SocketAddr, name: &str) -> anyhow::Result<u64> {
    let counts = transactions(&[address]).await?;
    Ok(counts.get(name).copied().unwrap_or_default())
}

/// Waits until a transaction has run so many more times.
pub async fn runs_again(address: SocketAddr, name: &str, times: u64) -> anyhow::Result<()> {
    let enough = transaction_count(address, name).await? + times;
    eventually(name, async || {
        let count = transaction_count(address, name).await;
        count.is_ok_and(|count| count >= enough)
    })
    .await
}

/// How often each transaction has run, by its name, on all these instances.
pub async fn transactions(addresses: &[SocketAddr]) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for address in addresses {
        let page = get(*address, "/metrics").await?.body;
        for line in page.lines() {
            let Some(labels) = line.strip_prefix("svc_ingest_database_transactions_total{") else {
                continue;
            };
            let (_, rest) = labels.split_once("name=\"").context("no name")?;
            let (name, rest) = rest.split_once('"').context("no end of the name")?;
            let count: u64 = rest.rsplit(' ').next().context("no count")?.parse()?;
            *counts.entry(name.to_owned()).or_default() += count;
        }
    }
    Ok(counts)
}
