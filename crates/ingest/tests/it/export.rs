//! The export of committed samples over OTLP.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use svc_ingest::export::otlp::{ExportRequest, KeyValue, Value};
use svc_proto::v1::Disk;
use svc_sandbox::{Process, dying_with_us, free_port};
use svc_testkit::{ActiveAgent, QueueKind, Site, eventually, metric_becomes, sample};
use tokio::net::TcpListener;

/// What a receiver has got: the value of its header, and the requests.
#[derive(Clone, Debug, Default)]
struct Received(Arc<Mutex<Vec<(String, ExportRequest)>>>);

impl Received {
    fn all(&self) -> Vec<(String, ExportRequest)> {
        self.0.lock().expect("no panic").clone()
    }

    /// The names of all metrics, and the number of points of one.
    fn names(&self) -> BTreeSet<String> {
        let requests = self
            .all()
            .into_iter()
            .flat_map(|(_, request)| request.resource_metrics);
        let scopes = requests.flat_map(|resource| resource.scope_metrics);
        scopes
            .flat_map(|scope| scope.metrics)
            .map(|metric| metric.name)
            .collect()
    }
}

/// A receiver that decodes what it gets, on a port of its own.
async fn receiver(grpc: bool) -> Result<(SocketAddr, Received)> {
    let address = (Ipv4Addr::LOCALHOST, free_port()?).into();
    Ok((address, receiver_at(address, grpc).await?))
}

async fn receiver_at(address: SocketAddr, grpc: bool) -> Result<Received> {
    let received = Received::default();
    let socket = TcpListener::bind(address).await?;
    let taken = received.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let (stream, taken) = (TokioIo::new(stream), taken.clone());
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(taken.clone(), grpc, request));
                if grpc {
                    let server = http2::Builder::new(TokioExecutor::new());
                    server.serve_connection(stream, service).await
                } else {
                    let server = http1::Builder::new();
                    server.serve_connection(stream, service).await
                }
            });
        }
    });
    Ok(received)
}

async fn answer(
    received: Received,
    grpc: bool,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (path, method) = (
        "/otlp/v1/metrics",
        "/otlp/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    );
    assert_eq!(request.uri().path(), if grpc { method } else { path });
    let key = request.headers().get("x-key");
    let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default();
    let key = key.to_owned();
    let body = request.into_body().collect().await.expect("a whole body");
    let message = body.to_bytes().split_off(if grpc { 5 } else { 0 });
    let message = ExportRequest::decode(message).expect("a request of OTLP");
    let mut taken = received.0.lock().expect("no panic");
    taken.push((key, message));
    let mut trailers = HeaderMap::new();
    if grpc {
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
    }
    let trailers = async { Some(Ok(trailers)) };
    Ok(Response::new(
        Full::new(Bytes::new()).with_trailers(trailers),
    ))
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    let Value::Text(text) = found.value.clone()?.value?;
    Some(text)
}

#[tokio::test]
async fn committed_samples_arrive_over_http_as_system_metrics_of_their_host() -> Result<()> {
    samples_arrive("http/protobuf").await
}

#[tokio::test]
async fn committed_samples_arrive_over_grpc_as_system_metrics_of_their_host() -> Result<()> {
    samples_arrive("grpc").await
}

async fn samples_arrive(protocol: &str) -> Result<()> {
    let (address, received) = receiver(protocol == "grpc").await?;
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_OTLP_ENDPOINT", format!("http://{address}/otlp"))
        .set("INGEST_OTLP_PROTOCOL", protocol)
        .set("INGEST_OTLP_HEADERS", "x-key=secret");
    let instance = instance.start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    let mut with_disk = sample(3);
    with_disk.vitals.get_or_insert_default().disks.push(Disk {
        mount_point: "/srv".into(),
        total_bytes: 100,
        used_bytes: 40,
        ..Disk::default()
    });
    call.report(vec![sample(1), sample(2), with_disk], vec![])
        .await?;
    call.acked_up_to(3).await?;
    eventually("the samples arrive", async || !received.all().is_empty()).await?;
    metric_becomes(instance.http, "export_samples_total", |count| count == 3.0).await?;

    let (key, request) = received.all().remove(0);
    assert_eq!(key, "secret");
    let resource = request.resource_metrics[0]
        .resource
        .clone()
        .unwrap_or_default();
    assert_eq!(
        text(&resource.attributes, "host.name").as_deref(),
        Some("web-1")
    );
    assert_eq!(
        text(&resource.attributes, "svc.label.env").as_deref(),
        Some("test")
    );
    let id = site.psql("SELECT id FROM hosts").await?;
    assert_eq!(text(&resource.attributes, "host.id"), Some(id));
    for name in [
        "system.cpu.utilization",
        "system.cpu.load_average.1m",
        "system.memory.usage",
        "system.network.io",
        "system.filesystem.usage",
        "system.uptime",
        "system.process.count",
    ] {
        assert!(
            received.names().contains(name),
            "{name}: {:?}",
            received.names()
        );
    }
    instance.stop().await
}

#[tokio::test]
async fn headers_of_the_export_are_in_no_log_line() -> Result<()> {
    for protocol in ["http/protobuf", "grpc"] {
        let (address, received) = receiver(protocol == "grpc").await?;
        let site = Site::new().await?;
        let instance = site
            .process()
            .set("INGEST_LOG", "trace")
            .set("INGEST_OTLP_ENDPOINT", format!("http://{address}/otlp"))
            .set("INGEST_OTLP_PROTOCOL", protocol)
            .set("INGEST_OTLP_HEADERS", "x-key=hunter2");
        let instance = instance.start().await?;
        let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
        agent.heartbeat().await?.report_acked(1..=1).await?;
        eventually("the sample arrives", async || !received.all().is_empty()).await?;
        assert_eq!(received.all()[0].0, "hunter2");
        instance.stop().await?;
        assert!(!instance.logs().contains("hunter2"), "{protocol}");
    }
    Ok(())
}

#[tokio::test]
async fn a_receiver_that_is_away_delays_no_acknowledgement() -> Result<()> {
    let away = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_OTLP_ENDPOINT", format!("http://{away}"));
    let instance = instance.start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    for seq in 1..=5 {
        call.report_acked(seq..=seq).await?;
    }
    call.goodbye().await?;
    // The stop does not wait for the receiver either.
    instance.stop().await
}

/// The samples are in the stream when the first instance has stopped, and the second one sends them.
#[tokio::test]
async fn over_jetstream_samples_wait_for_a_receiver_that_comes_later() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let address = (Ipv4Addr::LOCALHOST, free_port()?).into();
    let instance = || {
        let endpoint = format!("http://{address}/otlp");
        site.instance().set("INGEST_OTLP_ENDPOINT", endpoint)
    };
    let first = instance().start().await?;
    let agent = ActiveAgent::new(&site, first.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    call.report_acked(1..=3).await?;
    call.goodbye().await?;
    first.stop().await?;
    let received = receiver_at(address, false).await?;
    let second = instance().start().await?;
    eventually("the samples arrive", async || !received.all().is_empty()).await?;
    metric_becomes(second.http, "export_samples_total", |count| count == 3.0).await?;
    second.stop().await
}

/// The OTLP receiver of the OpenTelemetry collector, which prints each request as JSON.
#[tokio::test]
#[ignore = "needs the collector: run by make test-export"]
async fn the_opentelemetry_collector_accepts_what_is_exported() -> Result<()> {
    let program = std::env::var("OTLP_RECEIVER").context("OTLP_RECEIVER names the program")?;
    let ports = [free_port()?, free_port()?];
    let [http, grpc] = ports.map(|port| format!("127.0.0.1:{port}"));
    for (protocol, address) in [("http/protobuf", &http), ("grpc", &grpc)] {
        let site = Site::new().await?;
        let printed = site.path("printed");
        let mut command = dying_with_us(Path::new(&program));
        command
            .args([&http, &grpc])
            .stdout(fs::File::create(&printed)?);
        let _collector = Process::spawn(command)?;
        let instance = site
            .instance()
            .set("INGEST_OTLP_ENDPOINT", format!("http://{address}"))
            .set("INGEST_OTLP_PROTOCOL", protocol);
        let instance = instance.start().await?;
        let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
        agent.heartbeat().await?.report_acked(1..=3).await?;
        metric_becomes(instance.http, "export_samples_total", |count| count == 3.0).await?;
        let printed = fs::read_to_string(&printed)?;
        for part in ["web-1", "system.memory.usage", "network.io.direction"] {
            ensure!(printed.contains(part), "{protocol}: no {part} in {printed}");
        }
        instance.stop().await?;
    }
    Ok(())
}
