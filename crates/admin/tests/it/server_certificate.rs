//! The certificate and key of the server: bad files at the start, and replaced files while the
//! service runs.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use svc_ingest::config::{Config, Problems, Timing};
use svc_sandbox::{Authority, Identity};
use svc_testkit::{
    Environment, Instance, OneConnection, Site, Tls, assert_contains, eventually, write_private,
};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The problems of the files in `folder`, one line each.
fn problems(folder: &Path, write: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<Vec<String>> {
    let environment = Environment::with_files(folder, "postgres://svc@127.0.0.1/svc")?;
    write(&folder.join("server.crt"), &folder.join("server.key"))?;
    let read = Config::read(&|name| environment.get(name));
    let Problems(problems) = read.err().unwrap_or(Problems(Vec::new()));
    Ok(problems.iter().map(ToString::to_string).collect())
}

#[test]
fn a_bad_certificate_or_key_is_refused_under_its_variable() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let one = |write: &dyn Fn(&Path, &Path) -> Result<()>| -> Result<String> {
        let problems = problems(folder.path(), write)?;
        assert_eq!(problems.len(), 1, "{problems:?}");
        Ok(problems.concat())
    };
    let other = Identity::server(&["localhost"])?;
    let mismatch = one(&|_, key| Ok(fs::write(key, &other.key_pem)?))?;
    assert!(mismatch.starts_with("INGEST_TLS_KEY: "), "{mismatch}");
    assert_contains(&mismatch, "is not the key of the certificate");

    let empty = one(&|certificate, _| Ok(fs::write(certificate, "")?))?;
    assert!(empty.starts_with("INGEST_TLS_CERT: "), "{empty}");
    assert_contains(&empty, "holds no PEM certificate");

    let swapped = one(&|certificate, key| Ok(fs::write(certificate, fs::read(key)?)?))?;
    assert_contains(&swapped, "holds no PEM certificate");

    let keyless = one(&|certificate, key| Ok(fs::write(key, fs::read(certificate)?)?))?;
    assert!(keyless.starts_with("INGEST_TLS_KEY: "), "{keyless}");
    assert_contains(&keyless, "holds no PEM private key");

    let encrypted = include_str!("../fixtures/encrypted_pkcs8.pem");
    let encrypted = one(&|_, key| Ok(fs::write(key, encrypted)?))?;
    assert_contains(&encrypted, "not encrypted");
    Ok(())
}

#[test]
fn a_chain_with_a_damaged_certificate_in_it_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let found = problems(folder.path(), |certificate, _| {
        let leaf = fs::read_to_string(certificate)?;
        let second = Identity::server(&["localhost"])?.cert_pem;
        let cut = second.replacen("-----END CERTIFICATE-----", "", 1);
        Ok(fs::write(certificate, format!("{leaf}{cut}"))?)
    })?;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("INGEST_TLS_CERT: "), "{found:?}");
    Ok(())
}

#[test]
fn missing_files_are_two_problems_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let found = problems(folder.path(), |certificate, key| {
        fs::remove_file(certificate)?;
        Ok(fs::remove_file(key)?)
    })?;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("INGEST_TLS_CERT: ") && found[0].contains("server.crt"));
    assert!(found[1].starts_with("INGEST_TLS_KEY: ") && found[1].contains("server.key"));
    Ok(())
}

#[test]
fn carriage_returns_and_a_byte_order_mark_are_accepted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let found = problems(folder.path(), |certificate, key| {
        for path in [certificate, key] {
            let text = fs::read_to_string(path)?.replace('\n', "\r\n");
            write_private(path, format!("\u{feff}{text}"))?;
        }
        Ok(())
    })?;
    assert_eq!(found, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn an_expired_certificate_is_served_with_a_warning() -> Result<()> {
    let site = Site::new().await?;
    let expired = Identity::expired_server(&["localhost"])?;
    expired.write(site.folder(), "server")?;
    let process = site.process().start().await?;
    process
        .logs_contain("the TLS certificate has expired")
        .await?;
    let client = Identity::self_signed("agent")?;
    let stream = Tls::with(&client).connect(process.grpc).await?;
    assert_eq!(served(&stream)?, expired.cert_der);
    process.stop().await
}

fn look_often(timing: &mut Timing) {
    timing.certificate_poll = Duration::from_millis(50);
}

#[tokio::test]
async fn a_replaced_certificate_is_served_to_new_connections_and_old_ones_stay() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(look_often).start().await?;
    let client = Identity::self_signed("agent")?;
    let stream = Tls::with(&client).connect(instance.grpc).await?;
    let old = served(&stream)?;
    let mut connection = OneConnection::over(stream).await?;
    assert_eq!(connection.health_status().await?, "0");

    let new = Authority::new("a CA")?.issue_server(&["localhost"])?;
    new.write(site.folder(), "server")?;
    until_served(&instance, &client, &new.cert_der).await?;
    assert_ne!(old, new.cert_der);
    assert_eq!(connection.health_status().await?, "0");

    // A bad pair comes first; the unit tests of the reload check its effect.
    fs::write(site.path("server.key"), "")?;
    let newest = Identity::server(&["localhost"])?;
    newest.write(site.folder(), "server")?;
    until_served(&instance, &client, &newest.cert_der).await?;
    assert_eq!(connection.health_status().await?, "0");
    instance.stop().await
}

async fn until_served(instance: &Instance, client: &Identity, expected: &[u8]) -> Result<()> {
    eventually("the new certificate is served", async || {
        let stream = Tls::with(client).connect(instance.grpc).await;
        stream.is_ok_and(|stream| served(&stream).is_ok_and(|now| now == expected))
    })
    .await
}

/// The certificate that the server presented.
fn served(stream: &TlsStream<TcpStream>) -> Result<Vec<u8>> {
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().context("no certificate")?;
    Ok(chain.first().context("an empty chain")?.to_vec())
}

#[test]
fn a_fifo_in_place_of_a_certificate_is_refused_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let environment = Environment::with_files(folder.path(), "postgres://svc@h/d")?;
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR)?;
    let environment = environment.set("INGEST_TLS_CERT", &fifo);
    let problems = Config::read(&|name| environment.get(name)).expect_err("no certificate");
    assert_contains(&problems.to_string(), "not a regular file");
    Ok(())
}
