//! An endpoint that completes every handshake, answers pings, and answers no call: the wrong server behind a load balancer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use svc_agent::wire::Timeouts;
use svc_testkit::{AUTO, Proxy, Site, eventually, provider, token};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    installation::{Installed, PRESENCE},
    trust::tried_within,
};

struct Silent {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl Silent {
    /// With the certificate of the site's instances.
    async fn start(site: &Site) -> Result<Self> {
        let certificate = CertificateDer::from_pem_file(site.path("server.crt"))?;
        let key = PrivateKeyDer::from_pem_file(site.path("server.key"))?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, calls) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
        let seen = calls.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, seen.clone()));
            }
        });
        Ok(Self { address, calls })
    }
}

/// Whoever polls the connection answers its pings. The calls stay open.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, calls: Arc<AtomicUsize>) -> Result<()> {
    let stream = acceptor.accept(stream).await?;
    let mut connection = h2::server::handshake(stream).await?;
    let mut open = Vec::new();
    while let Some(call) = connection.accept().await {
        open.push(call?);
        calls.fetch_add(1, Relaxed);
    }
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_never_answers_a_registration_is_left_for_another_address() -> Result<()> {
    let (site, service) = Site::with_instance().await?;
    let silent = Silent::start(&site).await?;
    let other = Proxy::start(vec![service.grpc]).await?;
    other.refuse(true)?;
    let addresses = [silent.address, other.address()];
    let mut installed = Installed::new(&site, 1, &addresses, &token(&site, AUTO).await?)?;
    let timeouts = &mut installed.surroundings.timing.timeouts;
    timeouts.register = Duration::from_secs(1);
    (timeouts.ping_every, timeouts.ping_answer) = (timeouts.register / 4, Duration::from_secs(10));
    let agent = installed.start()?;
    eventually("it is asked", async || silent.calls.load(Relaxed) > 0).await?;
    other.refuse(false)?;
    site.becomes(PRESENCE, "online").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_check_does_not_wait_for_an_endpoint_that_never_answers() -> Result<()> {
    let site = Site::new().await?;
    let silent = Silent::start(&site).await?;
    let timeouts = Timeouts {
        probe: Duration::from_secs(1),
        ..Timeouts::default()
    };
    let address = silent.address.to_string();
    let checked = tried_within(&site, &address, Some("server.crt"), timeouts).await?;
    ensure!(
        checked == Err("the service did not answer in time".into()),
        "{checked:?}"
    );
    Ok(())
}
