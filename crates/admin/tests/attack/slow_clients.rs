//! Slow clients, silent or dribbling at every stage of a request: the service closes each at its
//! deadline and serves a real agent meanwhile.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use rustls::ClientConnection;
use rustls_pki_types::ServerName;
use svc_testkit::{AUTO, Site, Tls, Usage, eventually, token};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
    time::{interval_at, timeout},
};

use crate::{
    http2::{self, CHECK, Received},
    witness::Witness,
};

/// The stage at which a client becomes slow.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// A TCP connection.
    Connected,
    /// Half a TLS ClientHello.
    HalfHello,
    /// A whole ClientHello, and no answer to the ServerHello.
    Hello,
    /// TLS is established.
    Tls,
    /// The HTTP/2 preface and settings are sent.
    Preface,
    /// Half a HEADERS frame.
    HalfHeaders,
    /// A HEADERS frame without END_HEADERS.
    Unfinished,
    /// A request whose message never arrives.
    HalfMessage,
}

const STAGES: [Stage; 8] = [
    Stage::Connected,
    Stage::HalfHello,
    Stage::Hello,
    Stage::Tls,
    Stage::Preface,
    Stage::HalfHeaders,
    Stage::Unfinished,
    Stage::HalfMessage,
];

impl Stage {
    /// The bytes that reach the stage, and the pieces that follow.
    fn script(self) -> Script {
        let hello = client_hello();
        let half = hello.len() / 2;
        let spoken = [http2::PREFACE.to_vec(), http2::settings(&[])].concat();
        let bytes = |bytes: &[u8]| bytes.iter().map(|byte| vec![*byte]).collect::<Vec<_>>();
        match self {
            Self::Connected => Script::plain(vec![], bytes(&hello)),
            Self::HalfHello => Script::plain(hello[..half].to_vec(), bytes(&hello[half..])),
            Self::Hello => {
                let large_record = [0x17, 3, 3, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                Script::plain(hello, bytes(&large_record))
            }
            Self::Tls => Script::tls(vec![], bytes(&spoken)),
            Self::Preface => {
                let head = http2::frame_head(http2::UNKNOWN, 0, 0, 1000);
                Script::tls(spoken, bytes(&[head, vec![0; 50]].concat()))
            }
            Self::HalfHeaders => {
                let head = http2::frame_head(http2::HEADERS, http2::END_HEADERS, 1, 1000);
                Script::tls([spoken, head].concat(), bytes(&http2::call_headers(CHECK)))
            }
            Self::Unfinished => {
                let headers = http2::frame(http2::HEADERS, 0, 1, &http2::call_headers(CHECK));
                let more = http2::frame_head(http2::CONTINUATION, 0, 1, 1000);
                Script::tls(
                    [spoken, headers].concat(),
                    bytes(&[more, vec![0; 50]].concat()),
                )
            }
            Self::HalfMessage => {
                let prefix = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
                let piece = |byte: &u8| http2::frame(http2::DATA, 0, 1, &[*byte]);
                Script::tls(
                    [spoken, http2::call(1, CHECK)].concat(),
                    prefix.iter().map(piece).collect(),
                )
            }
        }
    }
}

struct Script {
    tls: bool,
    /// Sent at once.
    start: Vec<u8>,
    /// The pieces that a dribbling client sends one at a time.
    pieces: Vec<Vec<u8>>,
}

impl Script {
    fn plain(start: Vec<u8>, pieces: Vec<Vec<u8>>) -> Self {
        let tls = false;
        Self { tls, start, pieces }
    }

    fn tls(start: Vec<u8>, pieces: Vec<Vec<u8>>) -> Self {
        let tls = true;
        Self { tls, start, pieces }
    }
}

fn client_hello() -> Vec<u8> {
    let config = Tls::without_certificate().config().expect("TLS settings");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).expect("a ClientHello");
    hello
}

/// Slow clients of one kind.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    stage: Stage,
    clients: usize,
    /// The pause between pieces; `None` for silence.
    dribble: Option<Duration>,
    /// How long to wait for the close before giving up.
    patience: Duration,
}

impl Crowd {
    /// Returns for each client the time from its last step to the end of the connection or, for a
    /// request, to its answer.
    async fn run(self, address: SocketAddr) -> Result<Vec<Duration>> {
        let turns = Arc::new(Semaphore::new(64));
        let mut clients = JoinSet::new();
        for _ in 0..self.clients {
            let turns = turns.clone();
            clients.spawn(async move {
                let turn = turns.acquire_owned().await?;
                let script = self.stage.script();
                if script.tls {
                    let stream = http2::new_client(address).await?;
                    drop(turn);
                    self.hold_open(stream, script).await
                } else {
                    let stream = TcpStream::connect(address).await?;
                    drop(turn);
                    self.hold_open(stream, script).await
                }
            });
        }
        let ends = clients.join_all().await.into_iter();
        let mut ends: Vec<Duration> = ends.collect::<Result<_>>()?;
        ends.sort();
        Ok(ends)
    }

    async fn hold_open<S>(self, mut stream: S, script: Script) -> Result<Duration>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        stream.write_all(&script.start).await?;
        stream.flush().await?;
        let clock = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let answered = matches!(self.stage, Stage::HalfMessage);
        let end = async {
            match answered {
                true => until_answer(&mut reader).await,
                false => until_closed(&mut reader).await,
            }
        };
        let patience = self.patience;
        tokio::select! {
            ended = timeout(patience, end) => ended.map_err(|_| anyhow::anyhow!("not closed in {patience:?}"))??,
            () = self.dribble(&mut writer, script.pieces) => {}
        }
        Ok(clock.elapsed())
    }

    /// Never returns. After a failed write, the reader sees the end of the connection.
    async fn dribble(self, writer: &mut (impl AsyncWrite + Unpin), pieces: Vec<Vec<u8>>) {
        if let Some(pause) = self.dribble {
            let mut tick = interval_at(tokio::time::Instant::now() + pause, pause);
            for piece in pieces {
                tick.tick().await;
                if writer.write_all(&piece).await.is_err() || writer.flush().await.is_err() {
                    break;
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Waits for the end of the connection, in any form.
async fn until_closed(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut buffer = [0; 1024];
    while reader.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    Ok(())
}

/// Waits for the answer to the request, or the end of its stream.
async fn until_answer(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    loop {
        let received = Received::read(reader).await?;
        if received.stream == 1 && matches!(received.kind, http2::HEADERS | http2::RST_STREAM) {
            return Ok(());
        }
    }
}

/// The shortest and the longest time.
fn span(ends: &[Duration]) -> String {
    let ends = [ends.first(), ends.last()].map(|end| end.copied().unwrap_or_default());
    format!("{:.1?} to {:.1?}", ends[0], ends[1])
}

/// Runs `clients` silent and `clients` dribbling clients at a stage.
async fn run_stage(
    stage: Stage,
    address: SocketAddr,
    clients: usize,
    [deadline, at_most]: [Duration; 2],
) -> Result<()> {
    let crowd = |dribble| Crowd {
        stage,
        clients,
        dribble,
        patience: at_most * 2,
    };
    let (silent, dribbling) = tokio::try_join!(
        crowd(None).run(address),
        crowd(Some(deadline / 5)).run(address),
    )?;
    println!(
        "{:12} {clients} silent closed after {}, {clients} dribbling after {}",
        format!("{stage:?}"),
        span(&silent),
        span(&dribbling),
    );
    for end in silent.iter().chain(&dribbling) {
        ensure!(*end <= at_most, "{stage:?}: closed after {end:?}");
        ensure!(*end >= deadline / 2, "{stage:?}: never got there: {end:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_closed_at_every_stage_and_an_agent_is_still_served() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .limits(|limits| {
            limits.handshake_deadline = Duration::from_secs(2);
            limits.first_request_deadline = Duration::from_secs(2);
            limits.response_deadline = Duration::from_secs(2);
        })
        .start()
        .await?;
    let agent = Witness::agent(instance.grpc, token(&site, AUTO).await?);
    let times = [2, 20].map(Duration::from_secs);
    for stages in STAGES.chunks(2) {
        let stages = stages.iter();
        try_join_all(stages.map(|stage| run_stage(*stage, instance.grpc, 20, times))).await?;
    }
    println!("agent: {}", agent.finish()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn thousands_of_slow_clients_are_closed_and_an_agent_is_served_fast() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let before = Usage::of(process.pid())?.resident_mib();
    let agent = Witness::agent(process.grpc, token(&site, AUTO).await?);
    for stage in STAGES {
        run_stage(stage, process.grpc, 2000, [10, 15].map(Duration::from_secs)).await?;
    }
    let agent = agent.finish()?;
    println!("agent: {agent}");
    let mut after = 0;
    eventually("memory is given back", async || {
        after = Usage::of(process.pid()).map_or(u64::MAX, |usage| usage.resident_mib());
        after < before + 40
    })
    .await?;
    println!("memory: {before} MiB before, {after} MiB after");
    ensure!(
        agent.quantile(0.99) < Duration::from_secs(1),
        "p99 {:?}",
        agent.quantile(0.99)
    );
    Ok(())
}
