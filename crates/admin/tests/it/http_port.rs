//! The HTTP port: its three pages, and clients that try to block it.

use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Timestamp;
use svc_ingest::config::Timing;
use svc_sandbox::Identity;
use svc_testkit::{
    AUTO, FakeAgent, MANUAL, PATIENCE, Proxy, Site, assert_contains, channel, eventually,
    faults::behind_proxy, get, health_becomes, http, machine, metric, metric_becomes, token,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const PAGES: [&str; 3] = ["/healthz", "/.well-known/jwks.json", "/metrics"];

#[tokio::test]
async fn healthz_is_200_and_the_text_ok_and_nothing_more() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let answer = get(instance.http, "/healthz").await?;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    let plain = Some("text/plain; charset=utf-8");
    assert_eq!(answer.header("content-type"), plain);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    instance.stop().await
}

#[tokio::test]
async fn other_methods_are_405_with_the_allowed_ones() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    for page in PAGES {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
            let head = format!("{method} {page} HTTP/1.1\r\nContent-Length: 0\r\n");
            let answer = http(instance.http, &head).await?;
            assert_eq!(answer.status, 405, "{method} {page}");
            assert_eq!(answer.header("allow"), Some("GET,HEAD"), "{method} {page}");
        }
        let head = http(instance.http, &format!("HEAD {page} HTTP/1.1\r\n")).await?;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "HEAD {page}");
    }
    instance.stop().await
}

#[tokio::test]
async fn unknown_paths_are_404() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let near = [
        "/",
        "/healthz/",
        "/HEALTHZ",
        "/jwks.json",
        "/.well-known/../healthz",
        "//healthz",
    ];
    for path in near {
        for method in ["GET", "POST"] {
            let answer = http(instance.http, &format!("{method} {path} HTTP/1.1\r\n")).await?;
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
    assert_eq!(get(instance.http, "/healthz?verbose=1").await?.status, 200);
    instance.stop().await
}

#[tokio::test]
async fn headers_beyond_8_kilobytes_or_64_lines_are_431() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let large =
        |bytes: usize| format!("GET /healthz HTTP/1.1\r\nX-Long: {}\r\n", "x".repeat(bytes));
    let many = |lines: usize| format!("GET /healthz HTTP/1.1\r\n{}", "X: y\r\n".repeat(lines));
    for (head, status) in [
        (large(7 * 1024), 200),
        (large(9 * 1024), 431),
        (large(100 * 1024), 431),
        (many(60), 200),
        (many(65), 431),
    ] {
        let answer = http(instance.http, &head).await?;
        assert_eq!(answer.status, status, "{} bytes", head.len());
    }
    instance.stop().await
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_headers_is_closed_at_the_deadline() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let beginnings = ["", "GET /heal", "GET /healthz HTTP/1.1\r\nHost: x\r\n"];
    for result in futures_util::future::join_all(beginnings.map(|beginning| async move {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(instance.http).await?;
        stream.write_all(beginning.as_bytes()).await?;
        let mut answer = Vec::new();
        drop(timeout(PATIENCE, stream.read_to_end(&mut answer)).await?);
        anyhow::Ok(begun.elapsed())
    }))
    .await
    {
        assert!(
            result? >= Duration::from_secs(4),
            "closed before the deadline"
        );
    }
    instance.stop().await
}

#[tokio::test]
async fn healthz_and_jwks_are_503_while_the_start_waits_for_the_database() -> Result<()> {
    let site = Site::new().await?;
    let nobody = Proxy::start(Vec::new()).await?;
    let url = format!("postgres://svc@{}/svc", nobody.address());
    let instance = site.instance().set("DATABASE_URL", url).launch().await?;
    health_becomes(instance.http, 503, "starting: waiting for the database\n").await?;
    let jwks = get(instance.http, "/.well-known/jwks.json").await?;
    assert_eq!(jwks.status, 503);
    let metrics = get(instance.http, "/metrics").await?;
    assert_contains(&metrics.body, "svc_ingest_database_up 0\n");
    instance.stop().await
}

#[tokio::test]
async fn healthz_is_503_during_a_drain() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().set("INGEST_DRAIN_TIMEOUT", "3s");
    let instance = instance.start().await?;
    let http_port = instance.http;
    let channel = channel(instance.grpc, &Identity::self_signed("agent")?).await?;
    let watch = HealthClient::new(channel)
        .watch(HealthCheckRequest::default())
        .await?;
    let stopping = instance.ask_to_stop();
    health_becomes(http_port, 503, "draining: this instance is stopping\n").await?;
    drop(watch);
    stopping.ended().await
}

fn short_grace(timing: &mut Timing) {
    timing.health_grace = Duration::from_secs(2);
    timing.lease_renewal = Duration::from_millis(100);
}

#[tokio::test]
async fn healthz_is_503_while_the_database_is_away_longer_than_the_grace() -> Result<()> {
    let site = Site::new().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let instance = site.instance().timing(short_grace).set("DATABASE_URL", url);
    let instance = instance.start().await?;

    proxy.refuse(true)?;
    proxy.cut_all();
    metric_becomes(instance.http, "database_up", |up| up == 0.0).await?;
    let away = health_becomes(instance.http, 503, "the database has been away for ").await?;
    assert_eq!(away.lines().count(), 1, "{away}");
    let jwks = get(instance.http, "/.well-known/jwks.json").await?;
    assert_eq!(jwks.status, 200);

    proxy.heal()?;
    instance.serving().await?;
    assert_eq!(metric(instance.http, "database_up").await?, 1.0);
    instance.stop().await
}

#[tokio::test]
async fn the_metrics_cover_build_connections_handshakes_database_and_process() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let channel = channel(instance.grpc, &Identity::self_signed("agent")?).await?;
    HealthClient::new(channel.clone())
        .check(HealthCheckRequest::default())
        .await?;
    let page = get(instance.http, "/metrics").await?.body;
    let version = format!(
        "svc_ingest_build_info{{version=\"{}\"}} 1\n",
        svc_ingest::VERSION
    );
    for line in [
        version.as_str(),
        "svc_ingest_connections 1\n",
        "svc_ingest_connections_shed_total 0\n",
        "svc_ingest_accept_errors_total 0\n",
        "svc_ingest_handshakes_total{result=\"ok\"} 1\n",
        "svc_ingest_database_up 1\n",
        "svc_ingest_database_last_success_age_seconds ",
        "svc_ingest_database_pool_size{bulkhead=\"watch\"} ",
        "svc_ingest_database_pool_in_use{bulkhead=\"ingest\"} ",
        "svc_ingest_database_pool_waiting{bulkhead=\"auth\"} ",
        "svc_ingest_database_transactions_total{name=\"lease_claim\",outcome=\"ok\"} 1\n",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
        "svc_ingest_requests_total{method=\"health\"} 1\n",
        "svc_ingest_requests_ended_total{method=\"health\",code=\"ok\",reason=\"none\"} 1\n",
    ] {
        assert_contains(&page, line);
    }
    drop(channel);
    metric_becomes(instance.http, "connections", |open| open == 0.0).await?;
    instance.stop().await
}

#[tokio::test]
async fn the_format_of_the_metrics_follows_the_accept_header() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let openmetrics = "application/openmetrics-text";
    for format in ["text/plain; version=0.0.4", openmetrics] {
        let head = format!("GET /metrics HTTP/1.1\r\nAccept: {format}\r\n");
        let answer = http(instance.http, &head).await?;
        let shown = answer.header("content-type").unwrap_or_default();
        assert!(shown.starts_with(format), "{format}: {shown}");
        let ends = answer.body.ends_with("# EOF\n");
        assert_eq!(ends, format == openmetrics);
    }
    instance.stop().await
}

#[tokio::test]
async fn the_start_time_of_the_process_is_shown() -> Result<()> {
    let site = Site::new().await?;
    let before = Timestamp::now().as_second() as f64;
    let process = site.process().start().await?;
    let started = metric(process.http, "process_start_time_seconds").await?;
    let after = Timestamp::now().as_second() as f64;
    // The kernel rounds the time of the boot to a second.
    assert!(
        (before - 3.0..=after + 3.0).contains(&started),
        "{started}, not from {before} to {after}"
    );
    process.stop().await
}

#[tokio::test]
async fn requests_are_counted_by_method_code_and_reason_when_they_end() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    agent.refused(instance.grpc, "nonsense").await?;
    let jwt = agent.jwt(instance.grpc, &token(&site, AUTO).await?).await?;
    let mut call = agent.heartbeat(instance.grpc, &jwt).await?;
    let counted = async |labels: &str| {
        let name = format!("requests_ended_total{{{labels}}}");
        metric_becomes(instance.http, &name, |ended| ended == 1.0).await
    };
    counted("method=\"register\",code=\"invalid_argument\",reason=\"malformed_token\"").await?;
    counted("method=\"register\",code=\"ok\",reason=\"none\"").await?;
    site.decide_all("revoke").await?;
    call.end().await?;
    counted("method=\"heartbeat\",code=\"permission_denied\",reason=\"agent_revoked\"").await?;
    let (leaving, manual) = (FakeAgent::on(machine(2))?, token(&site, MANUAL).await?);
    drop(leaving.pending(instance.grpc, &manual).await?);
    counted("method=\"register\",code=\"cancelled\",reason=\"none\"").await?;
    instance.stop().await
}

#[tokio::test]
async fn open_files_are_counted_once_for_all_scrapes_of_a_few_seconds() -> Result<()> {
    let (_site, process) = Site::with_process().await?;
    let count = async || metric(process.http, "process_open_fds").await;
    let count_with_50_more = async || {
        let mut held = Vec::new();
        for _ in 0..50 {
            held.push(TcpStream::connect(process.http).await?);
        }
        count().await
    };
    let (clock, before) = (Instant::now(), count().await?);
    let soon = count_with_50_more().await?;
    if clock.elapsed() < Duration::from_secs(4) {
        assert_eq!(soon, before, "the files were counted again");
    }
    eventually("the files are counted again", async || {
        count_with_50_more()
            .await
            .is_ok_and(|count| count > before + 40.0)
    })
    .await
}
