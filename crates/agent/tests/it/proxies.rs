//! The agent behind an HTTP proxy: tunnels, credentials, exceptions, and proxies that fail.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use svc_testkit::{AUTO, Site, assert_contains, token};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::installation::{EPOCH, Installed, books_balance, installed};

/// `name:p@ss` in base64.
const CREDENTIALS: &str = "Proxy-Authorization: Basic bmFtZTpwQHNz";

/// A proxy that leads every tunnel to the service, whatever it asks for. So an agent whose
/// address leads nowhere arrives only through it.
struct HttpProxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl HttpProxy {
    async fn start(service: SocketAddr, needs: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, service, needs, seen.clone()));
            }
        });
        Ok(Self { address, requests })
    }

    fn requests(&self) -> Vec<String> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(
    mut client: TcpStream,
    service: SocketAddr,
    needs: &str,
    seen: Arc<Mutex<Vec<String>>>,
) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let is_allowed = head.contains(needs);
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head);
    if !is_allowed {
        let refusal =
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 3\r\n\r\nno\n";
        return Ok(client.write_all(refusal).await?);
    }
    let mut service = TcpStream::connect(service).await?;
    client
        .write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        .await?;
    copy_bidirectional(&mut client, &mut service).await?;
    Ok(())
}

/// An agent whose service has a name that only the proxy can reach: nothing listens on port 1.
fn behind(installed: &mut Installed, proxy: String) {
    installed.settings = vec![
        ("ingest_address", "localhost:1".into()),
        ("https_proxy", proxy),
    ];
}

#[tokio::test]
async fn an_agent_reaches_the_service_through_a_proxy() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let proxy = HttpProxy::start(service.grpc, "").await?;
    behind(&mut installed, format!("http://{}", proxy.address));
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    site.becomes("SELECT count(*) > 0 FROM host_metrics", "t")
        .await?;
    let check = installed.run(&["check"], 0).await?;
    assert_contains(&check.stdout, "through the proxy 127.0.0.1");
    agent.stop().await?;
    for request in proxy.requests() {
        let wanted = "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n";
        ensure!(request == wanted, "{request}");
    }
    books_balance(&site).await
}

/// The proxy cannot read the connection, and the agent verifies the service with the certificate that it has pinned.
#[tokio::test]
async fn a_trust_anchor_is_taken_through_a_proxy() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let proxy = HttpProxy::start(service.grpc, "").await?;
    behind(&mut installed, format!("http://{}", proxy.address));
    let agent = installed.start()?;
    site.becomes("SELECT array_length(anchors, 1) FROM agent_trust", "1")
        .await?;
    let new = svc_sandbox::Identity::server(&["localhost"])?.cert_der;
    let new: String = new.iter().map(|byte| format!("{byte:02x}")).collect();
    let add = format!("SELECT add_trust_anchor(decode('{new}', 'hex'), 'new', now(), 'ann')");
    site.psql(&add).await?;
    let taken = "SELECT count(*) FROM agent_trust, trust_anchors WHERE hash = ANY (anchors)";
    site.becomes(taken, "1").await?;
    agent.stop().await
}

#[tokio::test]
async fn credentials_reach_the_proxy_and_nobody_else() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let proxy = HttpProxy::start(service.grpc, CREDENTIALS).await?;
    behind(&mut installed, format!("http://{}", proxy.address));
    let agent = installed.start()?;
    installed.fails_with("wants a user and a password").await?;
    agent.stop().await?;

    let wrong = format!("http://name:wr0ng-secret@{}", proxy.address);
    behind(&mut installed, wrong);
    let agent = installed.process(&["run"])?.start()?;
    let refused = "407 Proxy Authentication Required";
    installed.fails_with(refused).await?;
    agent.stop().await?;
    let (logs, status) = (agent.logs(), format!("{:?}", installed.status()?));
    ensure!(
        !logs.contains("wr0ng") && !status.contains("wr0ng"),
        "{logs}"
    );

    behind(
        &mut installed,
        format!("http://name:p%40ss@{}", proxy.address),
    );
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await
}

#[tokio::test]
async fn hosts_of_no_proxy_are_reached_directly() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let proxy = HttpProxy::start(service.grpc, "").await?;
    installed.settings = vec![
        ("https_proxy", proxy.address.to_string()),
        ("no_proxy", "other.example, 127.0.0.0/8".into()),
    ];
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await?;
    ensure!(proxy.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_proxy_that_never_answers_is_given_up() -> Result<()> {
    let site = Site::new().await?;
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let mut installed = Installed::new(&site, 1, &[], &token(&site, AUTO).await?)?;
    installed.surroundings.timing.timeouts.handshake = Duration::from_millis(500);
    behind(&mut installed, silent.local_addr()?.to_string());
    let agent = installed.start()?;
    installed.fails_with("did not answer in time").await?;
    agent.stop().await
}
