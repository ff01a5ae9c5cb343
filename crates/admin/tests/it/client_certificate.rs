//! The TLS handshake: a client must prove that it holds the key of its certificate.

use std::{io, sync::Arc};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{
    CipherSuite, ClientConfig, HandshakeKind, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use svc_front::listener::Limits;
use svc_sandbox::{Authority, Identity};
use svc_testkit::{
    Instance, OneConnection, PATIENCE, Site, Tls, assert_contains, connect_with, get,
    metric_becomes, provider,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Long deadlines: a refusal in these tests must not come from a deadline.
fn long_deadlines(limits: &mut Limits) {
    limits.handshake_deadline = PATIENCE * 100;
    limits.first_request_deadline = PATIENCE * 100;
}

async fn patient_instance() -> Result<(Site, Instance)> {
    let site = Site::new().await?;
    let instance = site.instance().limits(long_deadlines).start().await?;
    Ok((site, instance))
}

async fn assert_served(tls: &Tls, instance: &Instance) -> Result<()> {
    let mut connection = OneConnection::open(tls, instance.grpc).await?;
    assert_eq!(connection.health_status().await?, "0", "{tls:?}");
    Ok(())
}

/// Fails unless a client with these settings gets an alert.
async fn assert_alerted(config: ClientConfig, instance: &Instance) -> Result<()> {
    let refused = refusal(config, instance.grpc).await?;
    assert_contains(&refused, "alert");
    Ok(())
}

/// Returns the error of a refused client, from the handshake or, with TLS 1.3, from the first read.
/// It sends the preface at once, as gRPC clients do.
async fn refusal(config: ClientConfig, address: std::net::SocketAddr) -> Result<String> {
    let attempt = async {
        let mut stream = connect_with(config, address).await?;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    let refused: io::Result<u8> = timeout(PATIENCE, attempt).await?;
    Ok(refused
        .err()
        .context("the client was accepted")?
        .to_string())
}

#[tokio::test]
async fn a_client_without_a_certificate_gets_a_tls_alert() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    for version in [&TLS12, &TLS13] {
        for _ in 0..20 {
            let config = Tls::without_certificate().version(version).config()?;
            assert_alerted(config, &instance).await?;
        }
    }
    let metrics = get(instance.http, "/metrics").await?.body;
    assert_contains(&metrics, "handshakes_total{result=\"no_certificate\"} 40");
    instance.stop().await
}

/// Presents a certificate without a look at it, or at the key that it belongs to.
#[derive(Debug)]
struct Presented(Arc<CertifiedKey>);

impl Presented {
    fn with_certificate_of(victim: &Identity) -> Result<Self> {
        let own = Identity::self_signed("thief")?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.key_der));
        let key = provider().key_provider.load_private_key(key)?;
        let chain = vec![CertificateDer::from(victim.cert_der.clone())];
        Ok(Self(Arc::new(CertifiedKey::new(chain, key))))
    }
}

impl ResolvesClientCert for Presented {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_stolen_certificate_is_worth_nothing_without_its_key() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    let victim = Identity::self_signed("agent")?;
    for version in [&TLS12, &TLS13] {
        let mut config = Tls::with(&victim).version(version).config()?;
        config.client_auth_cert_resolver = Arc::new(Presented::with_certificate_of(&victim)?);
        assert_alerted(config, &instance).await?;
        assert_served(&Tls::with(&victim).version(version), &instance).await?;
    }
    instance.stop().await
}

#[tokio::test]
async fn tls_1_1_is_refused_with_an_alert() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    let mut stream = TcpStream::connect(instance.grpc).await?;
    stream.write_all(&client_hello_of_tls_1_1()).await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
    const ALERT: u8 = 21;
    const FATAL: u8 = 2;
    const PROTOCOL_VERSION: u8 = 70;
    let [ALERT, _, _, 0, 2, FATAL, PROTOCOL_VERSION] = answer[..] else {
        anyhow::bail!("not the alert: {answer:?}");
    };
    instance.stop().await
}

/// A valid ClientHello, except for its version 1.1.
fn client_hello_of_tls_1_1() -> Vec<u8> {
    let cipher_suites = [0, 8, 0xc0, 0x09, 0xc0, 0x0a, 0xc0, 0x13, 0x00, 0x2f];
    let signature_algorithms = [0, 13, 0, 4, 0, 2, 4, 3];
    let groups = [0, 10, 0, 4, 0, 2, 0, 23];
    let point_formats = [0, 11, 0, 2, 1, 0];
    let extensions = [&signature_algorithms[..], &groups, &point_formats].concat();
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend(cipher_suites);
    hello.extend([1, 0]);
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);
    let length = hello.len() as u8;
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    record
}

#[tokio::test]
async fn plain_http_on_the_grpc_port_is_closed_at_once() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(instance.grpc).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // It may be closed or reset, but not after a deadline.
        drop(timeout(PATIENCE, stream.read_to_end(&mut answer)).await?);
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    let refused = r#"handshakes_total{result="not_tls"}"#;
    metric_becomes(instance.http, refused, |count| count == 2.0).await?;
    instance.stop().await
}

#[tokio::test]
async fn tls_on_the_http_port_is_answered_with_400() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let mut stream = TcpStream::connect(instance.http).await?;
    stream.write_all(&client_hello_of_tls_1_1()).await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    assert_eq!(get(instance.http, "/healthz").await?.status, 200);
    instance.stop().await
}

#[tokio::test]
async fn with_a_client_ca_only_its_certificates_are_accepted() -> Result<()> {
    let site = Site::new().await?;
    let (ours, other) = (Authority::new("ours")?, Authority::new("other")?);
    let path = site.path("client_ca.pem");
    std::fs::write(&path, ours.cert_pem())?;
    let builder = site.instance().limits(long_deadlines);
    let instance = builder.set("INGEST_TLS_CLIENT_CA", &path).start().await?;
    let member = ours.issue_client("agent")?;
    assert_served(&Tls::with(&member), &instance).await?;
    for stranger in [
        other.issue_client("agent")?,
        Identity::self_signed("agent")?,
    ] {
        for version in [&TLS12, &TLS13] {
            let config = Tls::with(&stranger).version(version).config()?;
            assert_alerted(config, &instance).await?;
        }
    }
    instance.stop().await
}

#[tokio::test]
async fn the_dates_and_names_of_a_self_made_certificate_do_not_matter() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    for (first, last) in [(1990, 1991), (2200, 2300), (2300, 1990)] {
        let client = dated(first, last)?;
        assert_served(&Tls::with(&client), &instance).await?;
    }
    instance.stop().await
}

/// A certificate with these years, the name of a server and no key usage.
/// Made by `openssl x509 -req` without extensions.
const VERSION_1: &str = include_str!("../fixtures/client_x509_v1.pem");

#[tokio::test]
async fn a_refused_certificate_of_version_1_is_logged_with_the_address_and_the_remedy() -> Result<()>
{
    let (_site, process) = Site::with_process().await?;
    let certificate = CertificateDer::from_pem_slice(VERSION_1.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(VERSION_1.as_bytes())?;
    let key = provider().key_provider.load_private_key(key)?;
    let version_1 = Arc::new(CertifiedKey::new(vec![certificate], key));
    for _ in 0..20 {
        let mut config = Tls::without_certificate().config()?;
        config.client_auth_cert_resolver = Arc::new(Presented(version_1.clone()));
        assert_contains(&refusal(config, process.grpc).await?, "alert");
    }
    process
        .logs_contain("a client certificate was refused")
        .await?;
    for words in ["peer=127.0.0.1:", "X.509 version 1", "openssl req -x509"] {
        assert_contains(&process.logs(), words);
    }
    process.stop().await?;
    let lines = process.logs().matches("certificate was refused").count();
    assert!(lines < 15, "{lines} lines: anyone could fill the log");
    Ok(())
}

fn dated(first: i32, last: i32) -> Result<Identity> {
    let mut params = CertificateParams::new(vec!["www.example.org".to_owned()])?;
    params.not_before = date_time_ymd(first, 1, 1);
    params.not_after = date_time_ymd(last, 1, 1);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Identity {
        cert_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
        cert_der: certificate.der().to_vec(),
        key_der: key.serialize_der(),
    })
}

/// The client prefers AES-256 with SHA-384, as rustls and OpenSSL do.
#[tokio::test]
async fn the_service_chooses_the_cheapest_cipher_suite() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    let tls = Tls::with(&Identity::self_signed("agent")?);
    let stream = tls.connect(instance.grpc).await?;
    let suite = stream.get_ref().1.negotiated_cipher_suite();
    let suite = suite.context("no cipher suite")?.suite();
    assert_eq!(suite, CipherSuite::TLS13_AES_128_GCM_SHA256);
    Ok(())
}

#[tokio::test]
async fn no_connection_can_be_resumed_later() -> Result<()> {
    let (_site, instance) = patient_instance().await?;
    let client = Identity::self_signed("agent")?;
    for version in [&TLS12, &TLS13] {
        let mut config = Tls::with(&client).version(version).config()?;
        config.resumption = Resumption::in_memory_sessions(8);
        for _ in 0..2 {
            let stream = connect_with(config.clone(), instance.grpc).await?;
            let kind = stream.get_ref().1.handshake_kind();
            assert!(kind.is_some_and(|kind| kind != HandshakeKind::Resumed));
            // With the answer comes whatever the service offers for a resumption.
            let mut connection = OneConnection::over(stream).await?;
            assert_eq!(connection.health_status().await?, "0");
        }
    }
    instance.stop().await
}
