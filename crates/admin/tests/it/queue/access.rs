//! Authentication and TLS of NATS.

use std::{ffi::OsStr, time::Duration};

use anyhow::{Context, Result};
use async_nats::{
    ConnectOptions,
    jetstream::consumer::{PullConsumer, pull},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::StreamExt;
use nkeys::KeyPair;
use serde_json::json;
use svc_pipeline::queue::{Queue, QueueSettings};
use svc_sandbox::{Authority, Nats, NatsOptions};
use svc_testkit::PATIENCE;
use tokio::time::timeout;

use super::{METRICS, agent, parcel, settings, settle, take};

async fn opens(settings: &QueueSettings) -> bool {
    opens_within(PATIENCE, settings).await
}

/// A refused connection is retried forever.
async fn is_refused(settings: &QueueSettings) -> bool {
    !opens_within(Duration::from_secs(2), settings).await
}

async fn opens_within(time: Duration, settings: &QueueSettings) -> bool {
    let opened = timeout(time, Queue::open(settings)).await;
    opened.is_ok_and(|opened| opened.is_ok())
}

#[tokio::test]
async fn credentials_in_the_url_are_used() -> Result<()> {
    let by_name = Nats::with(["--user", "svc", "--pass", "p@ss"]).await?;
    let by_token = Nats::with(["--auth", "t0ken"]).await?;
    for (nats, credentials, good) in [
        (&by_name, "svc:p%40ss@", true),
        (&by_name, "svc:wrong@", false),
        (&by_name, "", false),
        (&by_token, "t0ken@", true),
        (&by_token, "wrong@", false),
    ] {
        let url = nats
            .url()
            .replace("nats://", &format!("nats://{credentials}"));
        let settings = settings(&url)?;
        match good {
            true => assert!(opens(&settings).await, "{credentials}"),
            false => assert!(is_refused(&settings).await, "{credentials}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn tls_trusts_only_the_given_certificates() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let authority = Authority::new("NATS CA")?;
    let (certificate, key) = authority
        .issue_server(&["localhost"])?
        .write(folder.path(), "nats")?;
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.cert_pem())?;
    let [flag, certificate_flag, key_flag] = ["--tls", "--tlscert", "--tlskey"].map(OsStr::new);
    let (certificate, key) = (certificate.as_os_str(), key.as_os_str());
    let nats = Nats::with([flag, certificate_flag, certificate, key_flag, key]).await?;
    let url = format!("tls://localhost:{}", nats.port());
    let mut settings = settings(&url)?;
    assert!(is_refused(&settings).await, "its authority is unknown");
    settings.nats_ca = Some(ca);
    assert!(opens(&settings).await);
    Ok(())
}

/// A NATS claim about `subject`, signed by `issuer`.
fn claim(issuer: &KeyPair, subject: &KeyPair, nats: serde_json::Value) -> Result<String> {
    let encoded = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let header = encoded(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body = encoded(json!({
        "jti": "test", "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    }));
    let signed = format!("{header}.{body}");
    let signature = issuer.sign(signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

#[tokio::test]
async fn a_credentials_file_is_used_where_nats_requires_one() -> Result<()> {
    let (operator, account, user) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_user(),
    );
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let operator_claim = claim(
        &operator,
        &operator,
        json!({"type": "operator", "version": 2}),
    )?;
    let account_claim = claim(
        &operator,
        &account,
        json!({"type": "account", "version": 2, "limits": limits}),
    )?;
    let user_claim = claim(
        &account,
        &user,
        json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}),
    )?;
    let system = KeyPair::new_account();
    let system_claim = claim(&operator, &system, json!({"type": "account", "version": 2}))?;
    let system_key = system.public_key();
    let folder = tempfile::tempdir()?;
    let (config, creds) = (
        folder.path().join("nats.conf"),
        folder.path().join("svc.creds"),
    );
    let (key, seed) = (account.public_key(), user.seed()?);
    std::fs::write(
        &config,
        format!(
            "operator: {operator_claim}\nsystem_account: {system_key}\nresolver: MEMORY\n\
             resolver_preload: {{ {key}: {account_claim}, {system_key}: {system_claim} }}\n"
        ),
    )?;
    std::fs::write(
        &creds,
        format!(
            "-----BEGIN NATS USER JWT-----\n{user_claim}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        ),
    )?;
    let nats = Nats::with(["-c".as_ref(), config.as_os_str()]).await?;
    let mut settings = settings(&nats.url())?;
    assert!(is_refused(&settings).await);
    settings.nats_creds = Some(creds);
    let queue = timeout(PATIENCE, Queue::open(&settings)).await??;
    queue.push(parcel(agent(1), 1, 1)).await;
    settle(take(&mut queue.receivers(), 1).await?).await;
    Ok(())
}

/// The configuration is the one in docs/queue.md.
#[tokio::test]
async fn a_third_party_with_the_documented_permissions_reads_and_forges_nothing() -> Result<()> {
    let documented = include_str!("../../../../../docs/queue.md").split("```");
    let mut blocks = documented.filter(|block| block.contains("authorization {"));
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("nats.conf");
    std::fs::write(&config, blocks.next().context("the configuration")?)?;
    let nats = Nats::with(["-c".as_ref(), config.as_os_str()]).await?;
    let url = |user: &str| nats.url().replace("nats://", &format!("nats://{user}@"));
    let queue = Queue::open(&settings(&url("svc-ingest:change%20me"))?).await?;
    let user = |name: &str, password: &str| {
        ConnectOptions::with_user_and_password(name.to_owned(), password.to_owned())
    };
    let service = user("svc-ingest", "change me").connect(nats.url()).await?;
    let administrator = async_nats::jetstream::new(service.clone());
    let stream = administrator.get_stream(METRICS).await?;
    let consumer = pull::Config {
        durable_name: Some("reader".into()),
        ..pull::Config::default()
    };
    stream.create_consumer(consumer).await?;
    queue.push(parcel(agent(1), 1, 1)).await;

    let reader = user("reader", "change me too").custom_inbox_prefix("_INBOX_reader");
    let reader = reader.connect(nats.url()).await?;
    let context = async_nats::jetstream::new(reader.clone());
    let stream = context.get_stream_no_info(METRICS).await?;
    let own = stream.get_consumer("reader").await;
    let own: PullConsumer = own.map_err(anyhow::Error::from_boxed)?;
    let mut messages = own.fetch().max_messages(1).messages().await?;
    let message = timeout(PATIENCE, messages.next()).await?;
    let message = message
        .context("no message")?
        .map_err(anyhow::Error::from_boxed)?;
    message.ack().await.map_err(anyhow::Error::from_boxed)?;

    let mut seen = service.subscribe("svc.ingest.acked.x").await?;
    service.flush().await?;
    for subject in ["svc.ingest.acked.x", "svc.ingest.metrics.0"] {
        reader.publish(subject, "forged".into()).await?;
    }
    reader.flush().await?;
    service.publish("svc.ingest.acked.x", "true".into()).await?;
    let first = timeout(PATIENCE, seen.next())
        .await?
        .context("no message")?;
    assert_eq!(first.payload, "true");
    let others = stream.get_consumer::<pull::Config>("svc-ingest-0").await;
    assert!(others.is_err(), "it sees another consumer");
    let ranges = queue.depth().await?.ranges;
    assert_eq!(ranges, 1, "the forged report was taken");
    settle(take(&mut queue.receivers(), 1).await?).await;
    Ok(())
}

#[tokio::test]
async fn the_error_of_a_bad_credentials_file_names_it() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "not credentials")?;
    let mut settings = settings(&nats.url())?;
    settings.nats_creds = Some(file.path().to_owned());
    let error = Queue::open(&settings).await.expect_err("no credentials");
    let path = file.path().display().to_string();
    assert!(error.to_string().contains(&path), "{error:#}");
    Ok(())
}
