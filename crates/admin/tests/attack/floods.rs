//! HTTP/2 floods, whose frames are cheap to send and expensive to serve: the service sends GOAWAY
//! or throttles, and other clients are served as before.

mod kinds;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use socket2::SockRef;
use svc_testkit::{
    AUTO, ActiveAgent, Latencies, ServiceProcess, Site, Tls, Usage, metric, raise_file_limit, token,
};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, ReadHalf, split},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_rustls::client::TlsStream;

use self::kinds::{Answer, FLOODS, Flood, Streams};
use crate::{
    http2::{self, Received, check},
    not_reading::heartbeat,
    witness::Witness,
};

const ATTACKERS: usize = 4;
/// Small, so that the bytes written are about the bytes that the server has read.
const SEND_BUFFER: usize = 16 * 1024;
/// The rate of a throttled connection that has proven nothing, after its allowance and what one more read may bring: 2000 frames.
const FRAMES_PER_SECOND: f64 = 64.0;
/// The same of an agent's connection.
const AGENTS_FRAMES_PER_SECOND: u64 = 512;
/// The most bytes of a frame in a throttled flood.
const SMALL_FRAME: f64 = 32.0;
/// Bytes that the kernels buffer for a connection that nobody reads.
const BUFFERED: f64 = 512.0 * 1024.0;
/// What all attackers sent and received.
#[derive(Debug, Default)]
struct Tally {
    connections: AtomicU64,
    written: AtomicU64,
    /// Frames that were answered, and a few others.
    answers: AtomicU64,
    goaways: Mutex<BTreeMap<String, u64>>,
}

impl Tally {
    async fn read(&self, mut stream: ReadHalf<TlsStream<TcpStream>>) {
        while let Ok(received) = Received::read(&mut stream).await {
            self.answers.fetch_add(1, Ordering::Relaxed);
            if let Some(goaway) = received.goaway() {
                let mut goaways = self.goaways.lock().expect("no panic holds it");
                *goaways.entry(goaway).or_default() += 1;
            }
        }
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn goaways(&self) -> BTreeMap<String, u64> {
        self.goaways.lock().expect("no panic holds it").clone()
    }
}

/// Floods until the deadline, with a new connection after each loss.
async fn attack(address: SocketAddr, flood: &'static Flood, until: Instant, tally: Arc<Tally>) {
    while Instant::now() < until {
        let Ok(stream) = http2::open_http2(address, &[]).await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        flood_over(stream, flood, until, tally.clone()).await;
    }
}

/// Until the deadline, or until the connection is lost.
async fn flood_over(
    stream: TlsStream<TcpStream>,
    flood: &'static Flood,
    until: Instant,
    tally: Arc<Tally>,
) {
    tally.connections.fetch_add(1, Ordering::Relaxed);
    drop(SockRef::from(stream.get_ref().0).set_send_buffer_size(SEND_BUFFER));
    let (reader, mut writer) = split(stream);
    let reading = {
        let tally = tally.clone();
        tokio::spawn(async move { tally.read(reader).await })
    };
    let writing = async {
        let mut streams = Streams(1);
        writer.write_all(&(flood.open)()).await?;
        loop {
            let frames = (flood.again)(&mut streams);
            writer.write_all(&frames).await?;
            writer.flush().await?;
            let written = frames.len() as u64;
            tally.written.fetch_add(written, Ordering::Relaxed);
        }
    };
    let _: Result<std::io::Result<()>, _> = timeout_at(until, writing).await;
    drop(timeout(Duration::from_millis(200), reading).await);
}

/// The effect of a flood on the service.
struct Effect {
    tally: Arc<Tally>,
    /// Growth of memory at its peak, in MiB.
    growth: u64,
    cores: f64,
    requests: f64,
    witness: Latencies,
}

async fn run_flood(
    process: &ServiceProcess,
    token: &str,
    (flood, attackers): (&'static Flood, usize),
    length: Duration,
) -> Result<Effect> {
    let before = Usage::of(process.pid())?.resident;
    let requests = metric(process.http, "requests_total").await?;
    let tally = Arc::new(Tally::default());
    let witness = Witness::agent(process.grpc, token.to_owned());
    let until = Instant::now() + length;
    let attackers: JoinSet<()> = (0..attackers)
        .map(|_| attack(process.grpc, flood, until, tally.clone()))
        .collect();
    let watching = Usage::peak_during(process.pid(), attackers);
    let (peak, cores) = Usage::cores(process.pid(), watching).await?;
    let witness = witness.finish()?;
    let reached = metric(process.http, "requests_total").await? - requests;
    Ok(Effect {
        tally,
        growth: peak?.saturating_sub(before) >> 20,
        cores,
        requests: reached - 1.0 - witness.count() as f64,
        witness,
    })
}

impl Effect {
    fn print(&self, flood: &Flood) {
        println!(
            "{:34} {:8} | {:5} connections, {:7} KiB sent, {:7} requests reached a handler | {:4.2} cores, +{} MiB | agent {} | {:?}",
            flood.name,
            format!("{:?}", flood.answer),
            self.tally.connections(),
            self.tally.written() / 1024,
            self.requests,
            self.cores,
            self.growth,
            self.witness,
            self.tally.goaways(),
        );
    }

    /// Faults on any machine.
    fn faults(&self, flood: &Flood, length: Duration) -> Vec<String> {
        let connections = self.tally.connections();
        let goaways = self.tally.goaways().values().sum::<u64>();
        let frames = 2000.0 + FRAMES_PER_SECOND * length.as_secs_f64();
        let tokens = ATTACKERS as f64 * frames;
        let taken = tokens * SMALL_FRAME + connections as f64 * BUFFERED;
        let throttled = (self.tally.written() as f64) < taken;
        let bound = tokens + connections as f64 * 200.0;
        faults(
            flood,
            [
                (flood.answer != Answer::Goaway || goaways > 0, "no GOAWAY"),
                (
                    flood.answer != Answer::Throttle || throttled,
                    "not throttled",
                ),
                (self.requests < bound, "too many requests reached a handler"),
                (self.growth < 64, "memory grew by 64 MiB and more"),
            ],
        )
    }

    /// Violations of the figures in docs/reliability.md, on an idle machine.
    fn violations(&self, flood: &Flood) -> Vec<String> {
        let frugal = flood.answer != Answer::Throttle || self.cores < 0.5;
        let prompt = self.witness.quantile(0.99) < Duration::from_secs(1);
        faults(
            flood,
            [
                (self.growth < 20, "memory grew by 20 MiB and more"),
                (prompt, "an agent's p99 of 1 s and more"),
                (frugal, "half a core and more"),
            ],
        )
    }
}

fn faults<const N: usize>(flood: &Flood, checks: [(bool, &str); N]) -> Vec<String> {
    let failed = checks.into_iter().filter(|(holds, _)| !holds);
    failed
        .map(|(_, fault)| format!("{}: {fault}", flood.name))
        .collect()
}

/// Runs these floods one after the other, against a service of their own, and returns the faults.
async fn flood_each(
    floods: &'static [Flood],
    length: Duration,
    strict: bool,
) -> Result<Vec<String>> {
    let (site, process) = Site::with_process().await?;
    warm_up(&process).await?;
    let secret = token(&site, AUTO).await?;
    let before = Usage::of(process.pid())?.resident_mib();
    let mut faults = Vec::new();
    for flood in floods {
        let effect = run_flood(&process, &secret, (flood, ATTACKERS), length).await?;
        effect.print(flood);
        faults.extend(effect.faults(flood, length));
        if strict {
            faults.extend(effect.violations(flood));
        }
    }
    let lines = process.logs().lines().count();
    let after = Usage::of(process.pid())?.resident_mib();
    println!(
        "{before} MiB before {} floods, {after} MiB after; {lines} lines logged",
        floods.len()
    );
    if lines > 100 {
        faults.push(format!("the log was flooded: {lines} lines"));
    }
    Ok(faults)
}

/// Serves some clients first, so that the baseline of memory is a service in use.
async fn warm_up(process: &ServiceProcess) -> Result<()> {
    let mut clients = JoinSet::new();
    for _ in 0..200 {
        let address = process.grpc;
        clients.spawn(async move {
            let mut stream = http2::open_http2(address, &[]).await?;
            stream.write_all(&check(1)).await?;
            until_answered(&mut stream).await
        });
    }
    clients.join_all().await.into_iter().collect()
}

async fn until_answered(stream: &mut (impl AsyncRead + Unpin)) -> Result<()> {
    while Received::read(stream).await?.kind != http2::HEADERS {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_get_goaway_or_are_throttled() -> Result<()> {
    let (some, others) = FLOODS.split_at(FLOODS.len() / 2);
    let flood = |floods| flood_each(floods, Duration::from_secs(1), false);
    let (some, others) = tokio::try_join!(flood(some), flood(others))?;
    let faults = [some, others].concat();
    ensure!(faults.is_empty(), "{faults:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn floods_of_30_s_do_not_slow_other_clients() -> Result<()> {
    let seconds = std::env::var("ATTACK_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(30);
    let faults = flood_each(FLOODS, Duration::from_secs(seconds), true).await?;
    ensure!(faults.is_empty(), "{faults:#?}");
    Ok(())
}

/// Sends a request after each answer without a pause, and counts the answers.
async fn ask_without_pause(address: SocketAddr, length: Duration) -> Result<u64> {
    let mut stream = http2::open_http2(address, &[]).await?;
    stream.get_ref().0.set_nodelay(true)?;
    let (mut streams, mut answered) = (Streams(1), 0);
    let asking = async {
        loop {
            let id = streams.next();
            stream.write_all(&check(id)).await?;
            until_ended(&mut stream, id).await?;
            answered += 1;
        }
    };
    let cut: Result<Result<()>, _> = timeout(length, asking).await;
    ensure!(cut.is_err(), "the connection was lost");
    Ok(answered)
}

async fn until_ended(stream: &mut (impl AsyncRead + Unpin), id: u32) -> Result<()> {
    loop {
        let received = Received::read(stream).await?;
        if received.stream == id && received.ends() {
            return Ok(());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_client_without_pauses_is_throttled() -> Result<()> {
    let (_site, process) = Site::with_process().await?;
    let asking = ask_without_pause(process.grpc, Duration::from_secs(10));
    let (answered, cores) = Usage::cores(process.pid(), asking).await?;
    let answered = answered?;
    println!("one client without pause: {answered} answers in 10 s, {cores:.2} cores");
    ensure!(answered > 100, "slowed down too early");
    ensure!(answered < 1000, "not slowed down");
    Ok(())
}

/// Each alone may send 64 frames a second.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_thousand_strangers_that_flood_cost_agents_nothing() -> Result<()> {
    raise_file_limit();
    let (site, process) = Site::with_process().await?;
    let secret = token(&site, AUTO).await?;
    let pings = FLOODS.iter().find(|flood| flood.name == "PING");
    let pings = pings.context("no such flood")?;
    let effect = run_flood(&process, &secret, (pings, 1000), Duration::from_secs(25)).await?;
    effect.print(pings);
    let slowest = effect.witness.quantile(0.99);
    ensure!(
        slowest < Duration::from_secs(1),
        "an agent's p99 was {slowest:?}"
    );
    ensure!(effect.cores < 1.0, "they took a core");
    Ok(())
}

/// Proof gives a connection the rate of an agent, which is not much either.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn an_agent_that_floods_beside_its_stream_is_throttled() -> Result<()> {
    const SECONDS: u64 = 20;
    let (site, process) = Site::with_process().await?;
    for (number, name) in (1..).zip(["PING", "SETTINGS"]) {
        let flood = FLOODS.iter().find(|flood| flood.name == name);
        let flood = flood.context("no such flood")?;
        let agent = ActiveAgent::new(&site, process.grpc, number).await?;
        let mut stream = Tls::with(&agent.agent.identity)
            .connect(process.grpc)
            .await?;
        let opening = [http2::PREFACE, &http2::settings(&[]), &heartbeat(1, &agent)].concat();
        stream.write_all(&opening).await?;
        while Received::read(&mut stream).await?.kind != http2::DATA {}
        let (tally, until) = (
            Arc::default(),
            Instant::now() + Duration::from_secs(SECONDS),
        );
        let flooding = flood_over(stream, flood, until, Arc::clone(&tally));
        let ((), cores) = Usage::cores(process.pid(), flooding).await?;
        let answers = tally.answers.load(Ordering::Relaxed);
        println!("an agent's {name}: {answers} answers in {SECONDS} s, {cores:.2} cores");
        let usual = AGENTS_FRAMES_PER_SECOND * SECONDS;
        ensure!(
            (usual / 2..usual + 4000).contains(&answers),
            "{answers} answers"
        );
        ensure!(cores < 0.3, "{cores} cores");
    }
    Ok(())
}
