//! Which servers the agent trusts: a self-signed certificate as in the specification, the given
//! authorities, and no others.

use std::{net::SocketAddr, path::PathBuf, process::Command, sync::Arc};

use anyhow::{Context, Result, ensure};
use svc_agent::{
    identity::Identity,
    trust::Trust,
    wire::{Address, Connector, Route, Timeouts, probe},
};
use svc_sandbox::Authority;
use svc_testkit::{AUTO, Instance, Site, token};

use crate::installation::{Installed, PRESENCE};

/// Creates a certificate as the specification describes.
fn openssl_req_x509(site: &Site, extra: &[&str]) -> Result<()> {
    let (certificate, key) = (site.path("own.crt"), site.path("own.key"));
    let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
    let made = Command::new("openssl")
        .args(request.split(' '))
        .args(extra)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .context("openssl")?;
    ensure!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    Ok(())
}

/// Starts an instance with the certificate `name.crt` and the key `name.key`.
async fn serve(site: &Site, name: &str) -> Result<Instance> {
    site.instance()
        .set("INGEST_TLS_CERT", site.path(&format!("{name}.crt")))
        .set("INGEST_TLS_KEY", site.path(&format!("{name}.key")))
        .start()
        .await
}

async fn tried(site: &Site, address: &str, ca: Option<&str>) -> Result<Result<(), String>> {
    tried_within(site, address, ca, Timeouts::default()).await
}

pub async fn tried_within(
    site: &Site,
    address: &str,
    ca: Option<&str>,
    timeouts: Timeouts,
) -> Result<Result<(), String>> {
    let trust = Trust::load(ca.map(|name| site.path(name)).as_deref())?;
    let tls = Arc::new(trust.client(&Identity::generate()?)?);
    let connector = Connector::new(tls, timeouts, Route::default());
    let address: Address = address.parse().map_err(anyhow::Error::msg)?;
    let probed = match connector.connect(&address).await {
        Ok(connection) => probe(connection, timeouts.probe).await,
        Err(error) => return Ok(Err(error.to_string())),
    };
    Ok(probed.map(drop).map_err(|failure| failure.to_string()))
}

#[tokio::test]
async fn a_self_signed_certificate_of_openssl_is_trusted_by_itself() -> Result<()> {
    for names in [
        &["-subj", "/CN=127.0.0.1"][..],
        &[
            "-subj",
            "/CN=ingest",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ][..],
    ] {
        let site = Site::new().await?;
        openssl_req_x509(&site, names)?;
        let service = serve(&site, "own").await?;
        let secret = token(&site, AUTO).await?;
        let mut installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
        installed.ca_cert_file = site.path("own.crt");
        let agent = installed.start()?;
        site.becomes(PRESENCE, "online").await?;
        agent.stop().await?;
        // The name is still checked.
        let elsewhere = format!("localhost:{}", service.grpc.port());
        let refused = tried(&site, &elsewhere, Some("own.crt")).await?;
        ensure!(
            refused
                .clone()
                .is_err_and(|why| why.contains("another name")),
            "{refused:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn only_the_given_authority_is_trusted() -> Result<()> {
    let site = Site::new().await?;
    let (ours, theirs) = (Authority::new("ours")?, Authority::new("theirs")?);
    ours.issue_server(&["localhost", "127.0.0.1"])?
        .write(site.folder(), "issued")?;
    std::fs::write(site.path("ours.crt"), ours.cert_pem())?;
    std::fs::write(site.path("theirs.crt"), theirs.cert_pem())?;
    let service = serve(&site, "issued").await?;
    let address = service.grpc.to_string();
    ensure!(tried(&site, &address, Some("ours.crt")).await? == Ok(()));
    ensure!(tried(&site, &address, Some("issued.crt")).await? == Ok(()));
    for wrong in [Some("theirs.crt"), None] {
        let refused = tried(&site, &address, wrong).await?;
        let clear = |why: String| {
            why.contains("ca_cert_file") && why.contains("nobody that this agent trusts")
        };
        ensure!(refused.clone().is_err_and(clear), "{refused:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_expired_certificate_is_not_trusted() -> Result<()> {
    let site = Site::new().await?;
    svc_sandbox::Identity::expired_server(&["127.0.0.1"])?.write(site.folder(), "old")?;
    let service = serve(&site, "old").await?;
    let refused = tried(&site, &service.grpc.to_string(), Some("old.crt")).await?;
    ensure!(
        refused.clone().is_err_and(|why| why.contains("expired")),
        "{refused:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_service_with_a_client_authority_accepts_only_its_certificates() -> Result<()> {
    let site = Site::new().await?;
    let clients = Authority::new("clients")?;
    std::fs::write(site.path("clients.crt"), clients.cert_pem())?;
    let (certificate, key) = clients
        .issue_client("web-1")?
        .write(site.folder(), "web-1")?;
    let service = site
        .instance()
        .set("INGEST_TLS_CLIENT_CA", site.path("clients.crt"))
        .start()
        .await?;
    let secret = token(&site, AUTO).await?;
    let stranger = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let agent = stranger.start()?;
    stranger.fails_with("client_cert_file").await?;
    agent.stop().await?;

    let mut own = Installed::new(&site, 2, &[service.grpc], &secret)?;
    own.settings = vec![
        ("client_cert_file", certificate.display().to_string()),
        ("client_key_file", key.display().to_string()),
    ];
    let agent = own.start()?;
    site.becomes(PRESENCE, "online").await?;
    agent.stop().await
}

/// Runs `svc-agent check` without a `ca_cert_file` on a system whose only root is `root`.
async fn checked(site: &Site, address: SocketAddr, root: &str) -> Result<(bool, String)> {
    let mut installed = Installed::new(site, 1, &[address], "")?;
    installed.ca_cert_file = PathBuf::new();
    let check = installed.process(&["check"])?;
    let check = check.environment([("SSL_CERT_FILE", site.path(root))]);
    let text = check.run().await?.stdout;
    Ok((text.contains("it answers"), text))
}

#[tokio::test]
async fn without_a_ca_cert_file_the_systems_roots_are_trusted_and_no_others() -> Result<()> {
    let site = Site::new().await?;
    let (public, other) = (Authority::new("public")?, Authority::new("other")?);
    public
        .issue_server(&["localhost", "127.0.0.1"])?
        .write(site.folder(), "issued")?;
    std::fs::write(site.path("public.crt"), public.cert_pem())?;
    std::fs::write(site.path("other.crt"), other.cert_pem())?;
    let service = serve(&site, "issued").await?;
    let (answered, text) = checked(&site, service.grpc, "public.crt").await?;
    ensure!(answered, "{text}");
    let (answered, text) = checked(&site, service.grpc, "other.crt").await?;
    ensure!(!answered && text.contains("ca_cert_file"), "{text}");
    Ok(())
}
