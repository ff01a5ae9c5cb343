//! The export of committed samples over OTLP.

mod given_up;

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
use svc_pipeline::export::otlp::{
    Data, ExportRequest, Gauge, KeyValue, Metric, Number, Sum, Value,
};
use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure, Sample};
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

    fn metrics(&self) -> impl Iterator<Item = Metric> {
        let requests = self.all().into_iter();
        let resources = requests.flat_map(|(_, request)| request.resource_metrics);
        let scopes = resources.flat_map(|resource| resource.scope_metrics);
        scopes.flat_map(|scope| scope.metrics)
    }

    /// Each point as its metric's name and unit, its attributes, and its value.
    fn points(&self) -> BTreeSet<String> {
        let mut shown = BTreeSet::new();
        for Metric { name, unit, data } in self.metrics() {
            let (Data::Gauge(Gauge { points }) | Data::Sum(Sum { points, .. })) =
                data.expect("data");
            for point in points {
                let attributes = point.attributes.iter().map(|attribute| {
                    let value = text(&point.attributes, &attribute.key);
                    format!("{}={}", attribute.key, value.unwrap_or_default())
                });
                let attributes = attributes.collect::<Vec<_>>().join(",");
                let value = match point.value.expect("a value") {
                    Number::Double(value) => value.to_string(),
                    Number::Int(value) => value.to_string(),
                };
                shown.insert(format!("{name} {unit} {{{attributes}}} {value}"));
            }
        }
        shown
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
    let (instance, agent) = instance.with_agent(&site).await?;
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
    let id = site.psql("SELECT id FROM hosts").await?;
    for (key, value) in [
        ("host.name", "web-1"),
        ("svc.label.env", "test"),
        ("host.id", id.as_str()),
    ] {
        let found = text(&resource.attributes, key);
        assert_eq!(found.as_deref(), Some(value), "{key}");
    }
    let names: BTreeSet<String> = received.metrics().map(|metric| metric.name).collect();
    for name in [
        "system.cpu.utilization",
        "system.cpu.load_average.1m",
        "system.memory.usage",
        "system.network.io",
        "system.filesystem.usage",
        "system.uptime",
        "system.process.count",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    instance.stop().await
}

/// A sample with everything that is optional.
fn full_sample(seq: u64) -> Sample {
    let mut full = sample(seq);
    let vitals = full.vitals.get_or_insert_default();
    vitals.disks = vec![Disk {
        mount_point: "/srv".into(),
        device: "/dev/vdb".into(),
        fs_type: "xfs".into(),
        total_bytes: 100,
        used_bytes: 40,
        available_bytes: Some(50),
        inodes_used: Some(7),
        inodes_free: Some(8),
        read_only: Some(true),
    }];
    vitals.interfaces = vec![Interface {
        name: "eth0".into(),
        rx_bytes: 1000,
        tx_bytes: 2000,
    }];
    vitals.block_devices = vec![BlockDevice {
        name: "vdb".into(),
        reads: 1,
        read_bytes: 4096,
        writes: 2,
        written_bytes: 8192,
        busy_ms: 1500,
    }];
    vitals.pressure = Some(Pressure {
        cpu_some_ms: Some(100),
        memory_some_ms: Some(200),
        memory_full_ms: Some(300),
        io_some_ms: Some(400),
        io_full_ms: Some(500),
    });
    vitals.cpu_steal_ms = Some(2500);
    full
}

#[tokio::test]
async fn optional_vitals_are_exported_over_either_queue() -> Result<()> {
    QueueKind::each(async |kind| {
        let (address, received) = receiver(false).await?;
        let site = Site::new().await?.with_queue(kind).await?;
        let endpoint = format!("http://{address}/otlp");
        let instance = site.instance().set("INGEST_OTLP_ENDPOINT", endpoint);
        let (instance, agent) = instance.with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        call.report(vec![full_sample(1)], vec![]).await?;
        call.acked_up_to(1).await?;
        eventually("the sample arrives", async || !received.all().is_empty()).await?;
        let points = received.points();
        let file_system = "system.device=/dev/vdb,system.filesystem.mountpoint=/srv,system.filesystem.type=xfs,system.filesystem.mode=ro";
        let mut expected: Vec<String> = [
            "system.network.io By {network.interface.name=eth0,network.io.direction=receive} 1000",
            "system.network.io By {network.interface.name=eth0,network.io.direction=transmit} 2000",
            "system.disk.io By {system.device=vdb,disk.io.direction=read} 4096",
            "system.disk.io By {system.device=vdb,disk.io.direction=write} 8192",
            "system.disk.operations {operation} {system.device=vdb,disk.io.direction=read} 1",
            "system.disk.operations {operation} {system.device=vdb,disk.io.direction=write} 2",
            "system.disk.io_time s {system.device=vdb} 1.5",
            "system.cpu.linux.pressure.total s {system.linux.pressure.stall_type=some} 0.1",
            "system.memory.linux.pressure.total s {system.linux.pressure.stall_type=some} 0.2",
            "system.memory.linux.pressure.total s {system.linux.pressure.stall_type=full} 0.3",
            "system.io.linux.pressure.total s {system.linux.pressure.stall_type=some} 0.4",
            "system.io.linux.pressure.total s {system.linux.pressure.stall_type=full} 0.5",
            "system.cpu.time s {cpu.mode=steal} 2.5",
        ]
        .map(String::from)
        .to_vec();
        for (metric, state, value) in [
            ("system.filesystem.usage By", "used", 40),
            ("system.filesystem.usage By", "free", 50),
            ("system.filesystem.usage By", "reserved", 10),
            ("system.filesystem.inodes.usage {inodes}", "used", 7),
            ("system.filesystem.inodes.usage {inodes}", "free", 8),
        ] {
            let state = format!("{file_system},system.filesystem.state={state}");
            expected.push(format!("{metric} {{{state}}} {value}"));
        }
        for point in expected {
            assert!(points.contains(&point), "{kind:?}: no {point} in {points:#?}");
        }
        let network = points.iter().filter(|point| point.starts_with("system.network.io"));
        assert_eq!(network.count(), 2, "the totals would count everything twice");
        instance.stop().await
    })
    .await
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
        let logs = instance.logs();
        ensure!(logs.contains("serving") && !logs.contains("hunter2"));
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
    let (instance, agent) = instance.with_agent(&site).await?;
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

/// What waits for the export then is lost to the receiver, not to PostgreSQL. The stop has a deadline, which NATS cannot extend.
#[tokio::test]
async fn an_instance_with_an_export_stops_while_nats_is_frozen() -> Result<()> {
    let mut site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let (address, received) = receiver(false).await?;
    let endpoint = format!("http://{address}/otlp");
    let instance = site.process().set("INGEST_OTLP_ENDPOINT", endpoint);
    let instance = instance.start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    call.report_acked(1..=3).await?;
    eventually("the samples arrive", async || !received.all().is_empty()).await?;
    site.nats().freeze()?;
    call.report(vec![sample(4)], vec![]).await?;
    instance.stop().await?;
    site.nats().thaw()
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
        let (instance, agent) = instance.with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        call.report((1..=3).map(full_sample).collect(), vec![])
            .await?;
        call.acked_up_to(3).await?;
        metric_becomes(instance.http, "export_samples_total", |count| count == 3.0).await?;
        let printed = fs::read_to_string(&printed)?;
        for part in ["web-1", "system.memory.usage", "system.disk.io", "eth0"] {
            ensure!(printed.contains(part), "{protocol}: no {part} in {printed}");
        }
        instance.stop().await?;
    }
    Ok(())
}
