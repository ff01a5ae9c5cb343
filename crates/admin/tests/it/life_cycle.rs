//! The life of an instance: what it waits for at the start, its lease, and how it stops.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use svc_ingest::config::Timing;
use svc_sandbox::Identity;
use svc_testkit::{
    Proxy, ServiceProcess, Site, Tls, absent_instance, assert_contains, channel, eventually,
    faults::behind_proxy, get, grpc_call, health_becomes,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// From SIGTERM to the end.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Clients of every kind that could keep a service from stopping.
struct Clients {
    _silent: TcpStream,
    _during_handshake: TcpStream,
    _after_handshake: tokio_rustls::client::TlsStream<TcpStream>,
    _stalled: h2::client::SendRequest<bytes::Bytes>,
    _watching: tonic::Response<tonic::Streaming<tonic_health::pb::HealthCheckResponse>>,
    busy: tokio::task::JoinHandle<()>,
}

impl Clients {
    async fn connect(process: &ServiceProcess) -> Result<Self> {
        let identity = Identity::self_signed("agent")?;
        let silent = TcpStream::connect(process.grpc).await?;
        let mut during_handshake = TcpStream::connect(process.grpc).await?;
        during_handshake
            .write_all(&[22, 3, 1, 2, 0, 1, 0, 1])
            .await?;
        let after_handshake = Tls::with(&identity).connect(process.grpc).await?;
        let channel = channel(process.grpc, &identity).await?;
        let mut watching = HealthClient::new(channel.clone());
        Ok(Self {
            _silent: silent,
            _during_handshake: during_handshake,
            _after_handshake: after_handshake,
            _stalled: stalled(process, &identity).await?,
            _watching: watching.watch(HealthCheckRequest::default()).await?,
            busy: tokio::spawn(async move {
                let mut client = HealthClient::new(channel);
                while client.check(HealthCheckRequest::default()).await.is_ok() {}
            }),
        })
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.busy.abort();
    }
}

/// Sends a request, grants no window for the answer, and stops reading.
async fn stalled(
    process: &ServiceProcess,
    identity: &Identity,
) -> Result<h2::client::SendRequest<bytes::Bytes>> {
    let stream = Tls::with(identity).connect(process.grpc).await?;
    let mut builder = h2::client::Builder::new();
    let (mut requests, mut connection) = builder
        .initial_window_size(0)
        .handshake::<_, bytes::Bytes>(stream)
        .await?;
    let check = grpc_call("/grpc.health.v1.Health/Check")?;
    let (answer, mut body) = requests.send_request(check, false)?;
    body.send_data(bytes::Bytes::from_static(&[0; 5]), true)?;
    tokio::select! {
        ended = &mut connection => ended?,
        answer = answer => drop(answer?),
    }
    // A task keeps the connection open and never polls it again.
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(connection);
    });
    Ok(requests)
}

#[tokio::test]
async fn sigterm_stops_the_service_in_time_with_clients_of_every_kind() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let _clients = Clients::connect(&process).await?;
    let asked = Instant::now();
    process.stop().await?;
    assert!(asked.elapsed() < STOP_LIMIT, "{:?}", asked.elapsed());
    let released = "SELECT count(*) FROM ingest_instances WHERE stopped_at IS NOT NULL";
    site.expect(released, "1").await
}

#[tokio::test]
async fn without_clients_the_service_stops_at_once() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().set("INGEST_DRAIN_TIMEOUT", "10m");
    let process = process.start().await?;
    process.stop().await?;
    process.logs_contain("stopped").await
}

#[tokio::test]
async fn a_second_signal_stops_the_service_at_once() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().set("INGEST_DRAIN_TIMEOUT", "10m");
    let process = process.start().await?;
    let _clients = Clients::connect(&process).await?;
    process.signal(Signal::TERM)?;
    health_becomes(process.http, 503, "").await?;
    process.signal(Signal::INT)?;
    assert_eq!(process.ended().await?.code(), Some(1));
    Ok(())
}

#[tokio::test]
async fn a_signal_during_the_start_stops_the_service_cleanly() -> Result<()> {
    let site = Site::new().await?;
    let proxy = Proxy::start(Vec::new()).await?;
    let url = format!("postgres://svc@{}/svc", proxy.address());
    let process = site.process().set("DATABASE_URL", url).launch()?;
    process.logs_contain("waiting for the database").await?;
    process.stop().await
}

#[tokio::test]
async fn the_start_waits_for_a_database_that_is_away() -> Result<()> {
    let site = Site::new().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    proxy.refuse(true)?;
    let process = site.process().set("DATABASE_URL", url).launch()?;
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
async fn the_start_survives_a_database_that_comes_and_goes() -> Result<()> {
    let site = Site::unmigrated().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    // Enough bytes for a connection, too few for the migrations.
    proxy.cut_after(Some(1500));
    let process = site.process().set("DATABASE_URL", url).launch()?;
    process.logs_contain("waiting for the database").await?;
    proxy.heal()?;
    process.serving().await?;
    process.stop().await
}

fn short_lease(timing: &mut Timing) {
    timing.schema_patience = Duration::from_secs(1);
    timing.lease_renewal = Duration::from_millis(100);
}

#[tokio::test]
async fn a_start_without_migrations_fails_after_a_while() -> Result<()> {
    let site = Site::unmigrated().await?;
    let instance = site
        .instance()
        .timing(short_lease)
        .set("INGEST_AUTO_MIGRATE", "false");
    let failure = instance.launch().await?.failure().await?;
    assert!(failure.starts_with("INGEST_AUTO_MIGRATE: "), "{failure}");
    assert_contains(&failure, "0001_baseline");
    assert_contains(&failure, "run `svc-ingest migrate`");
    site.expect("SELECT to_regclass('ingest_instances') IS NULL", "t")
        .await
}

#[tokio::test]
async fn the_start_waits_for_another_process_to_migrate() -> Result<()> {
    let site = Site::unmigrated().await?;
    let process = site
        .process()
        .set("INGEST_AUTO_MIGRATE", "false")
        .launch()?;
    process
        .logs_contain("waiting for the schema to be migrated")
        .await?;
    health_becomes(process.http, 503, "starting: waiting for the schema\n").await?;
    site.process().arguments(&["migrate"]).exits(0).await?;
    process.serving().await?;
    process.stop().await
}

#[tokio::test]
async fn a_database_of_an_unreleased_version_is_refused_by_one_line() -> Result<()> {
    let site = Site::new().await?;
    site.psql("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1")
        .await?;
    for auto_migrate in ["true", "false"] {
        let instance = site.instance().set("INGEST_AUTO_MIGRATE", auto_migrate);
        let failure = instance.launch().await?.failure().await?;
        assert_contains(&failure, "unreleased version");
        assert_contains(&failure, "name a new database, or drop its schema");
        assert_eq!(failure.lines().count(), 1, "{failure}");
    }
    Ok(())
}

#[tokio::test]
async fn an_instance_claims_renews_and_releases_its_lease() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(short_lease).start().await?;
    let row = "SELECT grpc_address, http_address, fenced, stopped_at IS NULL, expires_at > now()
                 FROM ingest_instances";
    let expected = format!("{}|{}|f|t|t", instance.grpc, instance.http);
    site.expect(row, &expected).await?;

    let renewed = "SELECT renewed_at FROM ingest_instances";
    let first = site.psql(renewed).await?;
    eventually("the lease is renewed", async || {
        site.psql(renewed).await.is_ok_and(|now| now > first)
    })
    .await?;
    instance.stop().await?;
    let ended = "SELECT stopped_at IS NOT NULL, expires_at <= now() FROM ingest_instances";
    site.expect(ended, "t|t").await
}

#[tokio::test]
async fn a_fenced_instance_claims_a_new_id_and_keeps_serving() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(short_lease).start().await?;
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
    site.expect(live, "").await
}

#[tokio::test]
async fn an_instance_stops_when_a_sibling_signs_with_another_key() -> Result<()> {
    let lost = [
        "UPDATE ingest_instances SET fenced = true",
        "UPDATE ingest_instances SET expires_at = now() - interval '1 s'",
        "DELETE FROM ingest_instances",
    ];
    let sibling = absent_instance("'another-kid'", "1 hour");
    for lost in lost {
        let site = Site::new().await?;
        let instance = site.instance().timing(short_lease).start().await?;
        site.psql(&format!("BEGIN; {lost}; {sibling}; COMMIT"))
            .await?;
        let failure = instance.failure().await.context(lost)?;
        assert_contains(&failure, "the lease failed");
        assert_contains(&failure, "another-kid");
    }
    Ok(())
}

#[tokio::test]
async fn a_lease_that_only_expired_is_renewed() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(short_lease).start().await?;
    let id = site.psql("SELECT id FROM ingest_instances").await?;
    site.psql("UPDATE ingest_instances SET expires_at = now() - interval '1 ms'")
        .await?;
    let live = "SELECT id FROM ingest_instances WHERE NOT fenced AND expires_at > now()";
    site.becomes(live, &id).await?;
    instance.stop().await
}
