//! From start to end: what an instance waits for, how it holds its lease, and
//! how it leaves.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use svc_ingest::config::Timing;
use svc_sandbox::{Identity, Proxy, shared_postgres};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::harness::{Process, Site, Tls, channel, eventually, get};

/// P8: from SIGTERM to the end.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Clients of every kind that could keep a service from ending.
struct Crowd {
    _silent: TcpStream,
    _half_shaken: TcpStream,
    _shaken: tokio_rustls::client::TlsStream<TcpStream>,
    _stalled: h2::client::SendRequest<bytes::Bytes>,
    _watching: tonic::Response<tonic::Streaming<tonic_health::pb::HealthCheckResponse>>,
    busy: tokio::task::JoinHandle<()>,
}

impl Crowd {
    async fn gather(process: &Process) -> Result<Self> {
        let identity = Identity::self_signed("agent")?;
        let silent = TcpStream::connect(process.grpc).await?;
        let mut half_shaken = TcpStream::connect(process.grpc).await?;
        half_shaken.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await?;
        let shaken = Tls::with(&identity).connect(process.grpc).await?;
        let channel = channel(process.grpc, &identity).await?;
        let mut watching = HealthClient::new(channel.clone());
        Ok(Self {
            _silent: silent,
            _half_shaken: half_shaken,
            _shaken: shaken,
            _stalled: stalled(process, &identity).await?,
            _watching: watching.watch(HealthCheckRequest::default()).await?,
            busy: tokio::spawn(async move {
                let mut client = HealthClient::new(channel);
                while client.check(HealthCheckRequest::default()).await.is_ok() {}
            }),
        })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.busy.abort();
    }
}

/// Asks, grants the answer no window, and stops reading.
async fn stalled(
    process: &Process,
    identity: &Identity,
) -> Result<h2::client::SendRequest<bytes::Bytes>> {
    let stream = Tls::with(identity).connect(process.grpc).await?;
    let mut builder = h2::client::Builder::new();
    let (mut requests, mut connection) = builder
        .initial_window_size(0)
        .handshake::<_, bytes::Bytes>(stream)
        .await?;
    let request = http::Request::post("https://localhost/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .body(())?;
    let (answer, mut body) = requests.send_request(request, false)?;
    body.send_data(bytes::Bytes::from_static(&[0; 5]), true)?;
    tokio::select! {
        ended = &mut connection => ended?,
        answer = answer => drop(answer?),
    }
    // Kept open by a task that never polls it again.
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(connection);
    });
    Ok(requests)
}

#[tokio::test]
async fn sigterm_ends_it_in_time_whatever_its_clients_do() -> Result<()> {
    let site = Site::new().await?;
    let mut process = site.process().start().await?;
    let _crowd = Crowd::gather(&process).await?;
    let asked = Instant::now();
    process.stop().await?;
    assert!(asked.elapsed() < STOP_LIMIT, "{:?}", asked.elapsed());
    let released = "SELECT count(*) FROM ingest_instances WHERE stopped_at IS NOT NULL";
    assert_eq!(site.psql(released).await?, "1");
    Ok(())
}

#[tokio::test]
async fn without_clients_it_ends_without_delay() -> Result<()> {
    let site = Site::new().await?;
    let mut process = site
        .process()
        .set("INGEST_DRAIN_TIMEOUT", "10m")
        .start()
        .await?;
    process.stop().await?;
    process.says("stopped").await
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() -> Result<()> {
    let site = Site::new().await?;
    let mut process = site
        .process()
        .set("INGEST_DRAIN_TIMEOUT", "10m")
        .start()
        .await?;
    let _crowd = Crowd::gather(&process).await?;
    process.signal(Signal::TERM)?;
    process.says("stopping").await?;
    assert_eq!(get(process.http, "/healthz").await?.status, 503);
    process.signal(Signal::INT)?;
    assert_eq!(process.ended().await?.code(), Some(1));
    Ok(())
}

#[tokio::test]
async fn a_signal_during_the_start_ends_it_cleanly() -> Result<()> {
    let site = Site::new().await?;
    let nobody = Proxy::start(Vec::new()).await?;
    let url = format!("postgres://svc@{}/svc", nobody.address());
    let mut process = site.process().set("DATABASE_URL", url).launch()?;
    process.says("waiting for the database").await?;
    process.stop().await
}

/// A proxy before the site's database, and the URL that leads through it.
async fn proxied(site: &Site) -> Result<(Proxy, String)> {
    let postgres = format!("127.0.0.1:{}", shared_postgres().await?.port());
    let proxy = Proxy::start(vec![postgres.parse()?]).await?;
    let url = site
        .database_url()
        .replace(&postgres, &proxy.address().to_string());
    Ok((proxy, url))
}

#[tokio::test]
async fn a_database_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    let site = Site::new().await?;
    let (proxy, url) = proxied(&site).await?;
    proxy.refuse(true)?;
    let mut process = site.process().set("DATABASE_URL", url).launch()?;
    let tries = || process.logs().matches("waiting for the database").count();
    eventually("it has tried three times", async || tries() >= 3).await?;
    let logs = process.logs();
    assert!(
        logs.lines()
            .all(|line| line.contains("waiting for the database")),
        "{logs}"
    );
    proxy.heal()?;
    process.serving().await?;
    process.stop().await
}

#[tokio::test]
async fn a_database_that_comes_and_goes_during_the_start_is_waited_for() -> Result<()> {
    let site = Site::unmigrated().await?;
    let (proxy, url) = proxied(&site).await?;
    // Enough for a greeting and a ping, too little for what follows.
    proxy.cut_after(Some(1500));
    let mut process = site.process().set("DATABASE_URL", url).launch()?;
    process.says("waiting for the database").await?;
    proxy.heal()?;
    process.serving().await?;
    process.stop().await
}

fn hurried(timing: &mut Timing) {
    timing.schema_patience = Duration::from_secs(1);
    timing.lease_renewal = Duration::from_millis(100);
}

#[tokio::test]
async fn a_schema_that_nobody_migrates_is_named_after_a_while() -> Result<()> {
    let site = Site::unmigrated().await?;
    let instance = site
        .instance()
        .timing(hurried)
        .set("INGEST_AUTO_MIGRATE", "false");
    let failure = instance.launch().await?.failure().await?;
    assert!(failure.starts_with("INGEST_AUTO_MIGRATE: "), "{failure}");
    assert!(failure.contains("0001_instances"), "{failure}");
    assert!(failure.contains("run `svc-ingest migrate`"), "{failure}");
    assert_eq!(
        site.psql("SELECT to_regclass('ingest_instances') IS NULL")
            .await?,
        "t"
    );
    Ok(())
}

#[tokio::test]
async fn a_schema_that_somebody_else_migrates_is_waited_for() -> Result<()> {
    let site = Site::unmigrated().await?;
    let mut process = site
        .process()
        .set("INGEST_AUTO_MIGRATE", "false")
        .launch()?;
    process
        .says("waiting for the schema to be migrated")
        .await?;
    let answer = get(process.http, "/healthz").await?;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (503, "starting: waiting for the schema\n")
    );
    let migrated = site.process().arguments(&["migrate"]).run().await?;
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    process.serving().await?;
    process.stop().await
}

#[tokio::test]
async fn a_schema_that_was_altered_is_refused_whoever_migrates() -> Result<()> {
    let site = Site::new().await?;
    site.psql("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1")
        .await?;
    for auto_migrate in ["true", "false"] {
        let instance = site.instance().set("INGEST_AUTO_MIGRATE", auto_migrate);
        let failure = instance.launch().await?.failure().await?;
        assert!(failure.contains("0001_instances was changed"), "{failure}");
    }
    Ok(())
}

#[tokio::test]
async fn an_instance_holds_a_lease_renews_it_and_gives_it_back() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(hurried).start().await?;
    let row = "SELECT grpc_address, http_address, fenced, stopped_at IS NULL, expires_at > now()
                 FROM ingest_instances";
    let expected = format!("{}|{}|f|t|t", instance.grpc, instance.http);
    assert_eq!(site.psql(row).await?, expected);

    let renewed = "SELECT renewed_at FROM ingest_instances";
    let first = site.psql(renewed).await?;
    eventually("the lease is renewed", async || {
        site.psql(renewed).await.is_ok_and(|now| now > first)
    })
    .await?;
    instance.stop().await?;
    let ended = "SELECT stopped_at IS NOT NULL, expires_at <= now() FROM ingest_instances";
    assert_eq!(site.psql(ended).await?, "t|t");
    Ok(())
}

#[tokio::test]
async fn a_fenced_instance_takes_a_new_id_and_serves_on() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(hurried).start().await?;
    let old = site.psql("SELECT id FROM ingest_instances").await?;
    site.psql("UPDATE ingest_instances SET fenced = true")
        .await?;
    let live = "SELECT id FROM ingest_instances WHERE NOT fenced AND expires_at > now()";
    let mut new = String::new();
    eventually("it claims a new lease", async || {
        new = site.psql(live).await.unwrap_or_default();
        !new.is_empty()
    })
    .await?;
    assert_ne!(new, old);
    assert_eq!(get(instance.http, "/healthz").await?.status, 200);
    instance.stop().await?;
    assert_eq!(site.psql(live).await?, "");
    Ok(())
}

/// A live sibling that signs with another key.
const STRANGER: &str = "INSERT INTO ingest_instances
        (id, kid, hostname, version, grpc_address, http_address, expires_at)
    VALUES (gen_random_uuid(), 'another-kid', 'elsewhere', 'v', 'g', 'w', now() + interval '1 h')";

#[tokio::test]
async fn an_instance_that_finds_its_place_taken_by_another_key_ends() -> Result<()> {
    let lost = [
        "UPDATE ingest_instances SET fenced = true",
        "UPDATE ingest_instances SET expires_at = now() - interval '1 s'",
        "DELETE FROM ingest_instances",
    ];
    for lost in lost {
        let site = Site::new().await?;
        let instance = site.instance().timing(hurried).start().await?;
        site.psql(&format!("BEGIN; {lost}; {STRANGER}; COMMIT"))
            .await?;
        let failure = instance.failure().await.context(lost)?;
        assert!(failure.contains("the lease failed"), "{failure}");
        assert!(failure.contains("another-kid"), "{failure}");
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_that_only_lapsed_is_taken_up_again() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(hurried).start().await?;
    let id = site.psql("SELECT id FROM ingest_instances").await?;
    site.psql("UPDATE ingest_instances SET expires_at = now() - interval '1 ms'")
        .await?;
    let live = "SELECT id FROM ingest_instances WHERE NOT fenced AND expires_at > now()";
    eventually("the lease lives again", async || {
        site.psql(live).await.is_ok_and(|live| live == id)
    })
    .await?;
    instance.stop().await
}

#[tokio::test]
async fn instances_with_one_key_live_side_by_side() -> Result<()> {
    let site = Site::new().await?;
    let (one, two) = (
        site.instance().start().await?,
        site.instance().start().await?,
    );
    let live = "SELECT count(*) FROM ingest_instances WHERE expires_at > now()";
    assert_eq!(site.psql(live).await?, "2");
    one.stop().await?;
    assert_eq!(site.psql(live).await?, "1");
    two.serving().await?;
    two.stop().await
}

#[tokio::test]
async fn a_killed_instance_leaves_a_lease_that_its_successor_does_not_mind() -> Result<()> {
    let site = Site::new().await?;
    let mut process = site.process().start().await?;
    process.signal(Signal::KILL)?;
    process.ended().await?;
    let successor = site.instance().start().await?;
    successor.stop().await
}
