//! A small fleet for the tests of faults: agents that report, keep a ledger of what
//! was acknowledged to them, come back when they are cut off or asked to, and are
//! held against the database in the end.
//!
//! An agent behaves as the wire contract asks of it: it goes on at `acked_seq` + 1,
//! heeds hints, backs off, and on a Drain connects anew before it leaves.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use svc_proto::v1::{
    Ack, HeartbeatRequest, HeartbeatResponse, Report, Sample, Welcome,
    heartbeat_request::Message as Say, heartbeat_response::Message as Hear,
    ingest_service_client::IngestServiceClient,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status, Streaming,
    transport::{Channel, Endpoint, Uri},
};
use tonic_types::StatusExt;
use tower::service_fn;

use crate::{
    agents::{AUTO, FakeAgent, TokenRules, machine, token},
    beats::{sample, saying},
    harness::{PATIENCE, Site, Tls, connect_with, eventually},
};

/// What an agent keeps at most, and how much of it goes into one report.
const SPOOL: usize = 10_000;
const REPORT: usize = 100;
const REGISTERING: usize = 16;
/// What a connection may cost on a busy machine.
const EACH: Duration = Duration::from_millis(20);

/// How the agents of a fleet behave.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub every: Duration,
    /// How long they wait for a connection and for Welcome.
    pub patience: Duration,
    /// How long their network may be dead before they notice.
    pub keepalive: Duration,
    /// Before the first attempt to come back; doubled for each that fails.
    pub backoff: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            patience: Duration::from_secs(10),
            keepalive: Duration::from_secs(10),
            backoff: Duration::from_secs(1),
        }
    }
}

/// What happened to one agent, as it saw it.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The highest number it has taken, and the highest acknowledged to it.
    pub taken: u64,
    pub acked: u64,
    pub rejected: u64,
    /// Streams that were welcomed.
    pub streams: u32,
    pub connected: bool,
    /// When acknowledgements of something new came.
    pub acked_at: Vec<Instant>,
    /// From a sample's first sending to its acknowledgement.
    pub latencies: Vec<Duration>,
    /// From the loss of a stream to the next Welcome.
    pub absences: Vec<Duration>,
}

#[derive(Debug)]
pub struct Member {
    pub id: String,
    agent: FakeAgent,
    tls: ClientConfig,
    ledger: Mutex<Ledger>,
}

impl Member {
    pub fn ledger(&self) -> Ledger {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Running agents; dropped, they are gone without a word.
#[derive(Debug)]
pub struct Fleet {
    pub members: Vec<Arc<Member>>,
    sampling: Arc<AtomicBool>,
    running: JoinSet<()>,
}

impl Fleet {
    /// Registers `count` machines, numbered from `first`, at the first address, and
    /// starts their agents, each at an address of its own turn.
    pub async fn start(
        site: &Site,
        addresses: &[SocketAddr],
        first: u32,
        count: u32,
        pace: Pace,
    ) -> Result<Self> {
        let rules = TokenRules {
            max_uses: 100_000,
            ..AUTO
        };
        let secret = token(site, rules).await?;
        let registered: Vec<Result<(Arc<Member>, String)>> = stream::iter(first..first + count)
            .map(|number| {
                register(
                    addresses[number as usize % addresses.len()],
                    number,
                    &secret,
                )
            })
            .buffer_unordered(REGISTERING)
            .collect()
            .await;
        let mut fleet = Self {
            members: Vec::new(),
            sampling: Arc::new(AtomicBool::new(true)),
            running: JoinSet::new(),
        };
        for (turn, registered) in registered.into_iter().enumerate() {
            let (member, jwt) = registered?;
            fleet.members.push(member.clone());
            let life = Life {
                member,
                jwt,
                addresses: addresses.to_vec(),
                turn,
                pace,
                sampling: fleet.sampling.clone(),
                spool: VecDeque::new(),
                failures: 0,
                lost_at: None,
            };
            fleet.running.spawn(life.run());
        }
        fleet.all_connected().await?;
        Ok(fleet)
    }

    pub fn connected(&self) -> usize {
        let members = self.members.iter();
        members.filter(|member| member.book().connected).count()
    }

    pub async fn all_connected(&self) -> Result<()> {
        let patience = PATIENCE + EACH * u32::try_from(self.members.len())?;
        svc_sandbox::eventually("all agents are connected", patience, async || {
            self.connected() == self.members.len()
        })
        .await
    }

    /// Waits until every agent has been acknowledged something new after `since`.
    pub async fn all_acked_since(&self, since: Instant) -> Result<()> {
        eventually("all agents are acknowledged again", async || {
            let mut members = self.members.iter();
            members.all(|member| member.book().acked_at.last().is_some_and(|at| *at > since))
        })
        .await
    }

    /// Waits until what was held up is acknowledged, at the rate that agents may report.
    pub async fn catches_up(&self) -> Result<()> {
        let patience = Duration::from_mins(3);
        svc_sandbox::eventually("the backlog is gone", patience, async || {
            let mut members = self.members.iter();
            members.all(|member| {
                let ledger = member.book();
                ledger.acked + 2 >= ledger.taken
            })
        })
        .await
    }

    /// How many acknowledgements came in between.
    pub fn acks_between(&self, from: Instant, to: Instant) -> usize {
        let ledgers = self.ledgers();
        let times = ledgers.iter().flat_map(|ledger| &ledger.acked_at);
        times.filter(|at| **at > from && **at < to).count()
    }

    pub fn ledgers(&self) -> Vec<Ledger> {
        self.members.iter().map(|member| member.ledger()).collect()
    }

    pub fn streams(&self) -> Vec<u32> {
        self.ledgers().iter().map(|ledger| ledger.streams).collect()
    }

    /// Takes no more samples, and waits until all that were taken are acknowledged.
    pub async fn settle(&self) -> Result<()> {
        self.sampling.store(false, Ordering::Relaxed);
        let settled = eventually("everything is acknowledged", async || {
            let mut members = self.members.iter();
            members.all(|member| {
                let ledger = member.book();
                ledger.acked == ledger.taken && ledger.connected
            })
        });
        settled.await.with_context(|| {
            let open = self.ledgers().into_iter();
            let open = open.filter(|ledger| ledger.acked < ledger.taken || !ledger.connected);
            let open: Vec<_> = open
                .map(|ledger| (ledger.acked, ledger.taken, ledger.connected))
                .collect();
            format!("(acknowledged, taken, connected): {open:?}")
        })
    }

    /// Takes samples again.
    pub fn resume(&self) {
        self.sampling.store(true, Ordering::Relaxed);
    }

    /// Settles, and holds the ledgers against the tables: nothing that was
    /// acknowledged is missing, nothing is there twice, and the books balance.
    pub async fn audit(&self, site: &Site) -> Result<()> {
        self.settle().await?;
        let sql = "SELECT s.agent_id, s.acked_seq, s.stored_count, s.rejected_count, s.gap_count,
                          count(m.seq), count(DISTINCT m.seq), coalesce(max(m.seq), 0)
                     FROM agent_state s LEFT JOIN host_metrics m USING (agent_id) GROUP BY s.agent_id";
        let table = site.psql(sql).await?;
        let books: HashMap<&str, &str> = table
            .lines()
            .filter_map(|line| line.split_once('|'))
            .collect();
        for member in &self.members {
            let row = *books.get(member.id.as_str()).context("an agent's books")?;
            let numbers: Vec<u64> = row.split('|').map(str::parse).collect::<Result<_, _>>()?;
            let [acked, stored, rejected, gaps, rows, distinct, highest] = numbers[..] else {
                bail!("not a row: {row}");
            };
            let ledger = member.book();
            ensure!(ledger.acked <= acked, "acknowledged and not there: {row}");
            ensure!(rows == distinct, "stored twice: {row}");
            ensure!(
                rows == stored && highest <= acked,
                "not in the books: {row}"
            );
            ensure!(rejected == ledger.rejected, "rejections: {row}, {ledger:?}");
            ensure!(gaps == 0, "lost on the way: {row}");
            ensure!(stored + rejected == acked, "the books: {row}");
        }
        Ok(())
    }
}

async fn register(address: SocketAddr, number: u32, secret: &str) -> Result<(Arc<Member>, String)> {
    let agent = FakeAgent::on(machine(number))?;
    let answer = agent.register(address, secret).await?;
    let member = Member {
        id: answer.agent_id,
        tls: Tls::with(&agent.identity).config()?,
        agent,
        ledger: Mutex::default(),
    };
    let jwt = answer.credential.context("a credential")?.jwt;
    Ok((Arc::new(member), jwt))
}

/// The presence of all agents, looked at ten times a second whenever the database answers.
#[derive(Debug)]
pub struct Sampler {
    stop: CancellationToken,
    looking: tokio::task::JoinHandle<(usize, i64)>,
}

impl Sampler {
    pub fn start(site: &Site) -> Result<Self> {
        let stop = CancellationToken::new();
        let looking = tokio::spawn(look(site.database_url(), stop.clone()));
        Ok(Self { stop, looking })
    }

    /// How often it could look, and how many agents were offline at the worst of times.
    pub async fn stop(self) -> Result<(usize, i64)> {
        self.stop.cancel();
        Ok(self.looking.await?)
    }
}

async fn look(url: String, stop: CancellationToken) -> (usize, i64) {
    let sql = "SELECT count(*) FROM agent_state WHERE presence = 'offline'";
    let (mut looks, mut worst) = (0, 0);
    while !stop.is_cancelled() {
        let answer = timeout(Duration::from_secs(2), svc_sandbox::query(&url, sql)).await;
        if let Ok(Ok(count)) = answer {
            looks += 1;
            worst = worst.max(count.parse().unwrap_or(i64::MAX));
        }
        sleep(Duration::from_millis(100)).await;
    }
    (looks, worst)
}

/// How often agents have gone offline: every change is an event.
pub async fn times_offline(site: &Site) -> Result<u64> {
    let sql = "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";
    Ok(site.psql(sql).await?.parse()?)
}

/// One agent, from its registration on.
struct Life {
    member: Arc<Member>,
    jwt: String,
    addresses: Vec<SocketAddr>,
    turn: usize,
    pace: Pace,
    sampling: Arc<AtomicBool>,
    /// What is not acknowledged, with the time of its first sending.
    spool: VecDeque<(Sample, Option<Instant>)>,
    failures: u32,
    lost_at: Option<Instant>,
}

/// A stream that was welcomed.
struct Link {
    out: mpsc::Sender<HeartbeatRequest>,
    responses: Streaming<HeartbeatResponse>,
    /// The highest number sent over it.
    sent: u64,
    _channel: IngestServiceClient<Channel>,
}

impl Life {
    async fn run(mut self) {
        let mut link: Option<Link> = None;
        let mut connect_at = Some(tokio::time::Instant::now());
        let mut tick = tokio::time::interval(self.pace.every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    self.take_sample();
                    if let Some(link) = &mut link {
                        self.report(link);
                    }
                }
                said = next(&mut link) => match said {
                    Ok(Some(Hear::Ack(ack))) => self.acknowledged(&ack),
                    Ok(Some(Hear::Credential(credential))) => self.jwt = credential.jwt,
                    Ok(Some(Hear::Drain(drain))) => {
                        let slot = drain.reconnect_after.unwrap_or_default();
                        let slot = Duration::try_from(slot).unwrap_or_default();
                        connect_at = Some(tokio::time::Instant::now() + slot);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => (link, connect_at) = (None, Some(self.lost(None))),
                    Err(status) => (link, connect_at) = (None, Some(self.lost(Some(&status)))),
                },
                () = sleep_until(connect_at.unwrap_or_else(tokio::time::Instant::now)), if connect_at.is_some() => {
                    match self.connect().await {
                        Ok(welcomed) => {
                            let mut welcomed = welcomed;
                            self.report(&mut welcomed);
                            (link, connect_at) = (Some(welcomed), None);
                        }
                        Err(status) => connect_at = Some(self.again_at(status.as_ref())),
                    }
                }
            }
        }
    }

    fn take_sample(&mut self) {
        if self.sampling.load(Ordering::Relaxed) && self.spool.len() < SPOOL {
            let mut ledger = self.member.book();
            ledger.taken += 1;
            self.spool.push_back((sample(ledger.taken), None));
        }
    }

    /// Everything that was not sent over this stream yet, if the stream takes it.
    fn report(&mut self, link: &mut Link) {
        while let Ok(place) = link.out.try_reserve() {
            let unsent = self.spool.iter_mut();
            let unsent = unsent.filter(|(sample, _)| sample.seq > link.sent);
            let mut samples = Vec::new();
            for (sample, sent_at) in unsent.take(REPORT) {
                sent_at.get_or_insert_with(Instant::now);
                samples.push(sample.clone());
            }
            let Some(last) = samples.last() else { return };
            link.sent = last.seq;
            let gaps = vec![];
            place.send(saying(Say::Report(Report { samples, gaps })));
        }
    }

    fn acknowledged(&mut self, ack: &Ack) {
        let mut ledger = self.member.book();
        ledger.rejected += ack.rejected.len() as u64;
        if ack.up_to_seq > ledger.acked {
            ledger.acked = ack.up_to_seq;
            ledger.acked_at.push(Instant::now());
        }
        while let Some((_, sent_at)) = self
            .spool
            .pop_front_if(|(sample, _)| sample.seq <= ack.up_to_seq)
        {
            ledger.latencies.extend(sent_at.map(|at| at.elapsed()));
        }
    }

    fn lost(&mut self, status: Option<&Status>) -> tokio::time::Instant {
        self.member.book().connected = false;
        self.lost_at.get_or_insert_with(Instant::now);
        self.turn += 1;
        self.again_at(status)
    }

    /// The service's hint goes first; full jitter otherwise.
    fn again_at(&mut self, status: Option<&Status>) -> tokio::time::Instant {
        self.failures += 1;
        let hint = status.and_then(|status| status.get_error_details().retry_info().cloned());
        let hint = hint.and_then(|hint| hint.retry_delay);
        let most = self.pace.backoff * 2_u32.pow(self.failures.min(4) - 1);
        let wait = hint.unwrap_or_else(|| most.mul_f64(rand::random()));
        tokio::time::Instant::now() + wait
    }

    /// `Err(None)` where nobody answered in time.
    async fn connect(&mut self) -> Result<Link, Option<Status>> {
        let address = self.addresses[self.turn % self.addresses.len()];
        let connecting = timeout(self.pace.patience, self.open(address)).await;
        let opened = connecting.unwrap_or(Err(None));
        let (link, welcome) = opened.inspect_err(|_| self.turn += 1)?;
        self.failures = 0;
        let mut ledger = self.member.book();
        ledger
            .absences
            .extend(self.lost_at.take().map(|at| at.elapsed()));
        ledger.streams += 1;
        ledger.connected = true;
        drop(ledger);
        let up_to_seq = welcome.acked_seq;
        self.acknowledged(&Ack {
            up_to_seq,
            rejected: vec![],
        });
        Ok(link)
    }

    async fn open(&self, address: SocketAddr) -> Result<(Link, Welcome), Option<Status>> {
        let channel = self.channel(address).await.map_err(|_| None)?;
        let mut client = IngestServiceClient::new(channel);
        let (out, requests) = mpsc::channel(4);
        let mut request = Request::new(ReceiverStream::new(requests));
        let bearer = format!("Bearer {}", self.jwt).parse();
        let metadata = request.metadata_mut();
        metadata.insert("authorization", bearer.expect("a JWT is ASCII"));
        let mut responses = client.heartbeat(request).await.map_err(Some)?.into_inner();
        let hello = saying(Say::Hello(self.member.agent.hello()));
        out.send(hello).await.map_err(|_| None)?;
        let said = responses.message().await.map_err(Some)?;
        let Some(Hear::Welcome(welcome)) = said.and_then(|said| said.message) else {
            return Err(None);
        };
        let link = Link {
            out,
            responses,
            sent: welcome.acked_seq,
            _channel: client,
        };
        Ok((link, welcome))
    }

    async fn channel(&self, address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
        let tls = self.member.tls.clone();
        let connector = service_fn(move |_: Uri| {
            let tls = tls.clone();
            async move { connect_with(tls, address).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("https://localhost")
            .http2_keep_alive_interval(self.pace.keepalive)
            .keep_alive_timeout(self.pace.keepalive)
            .keep_alive_while_idle(true);
        endpoint.connect_with_connector(connector).await
    }
}

async fn next(link: &mut Option<Link>) -> Result<Option<Hear>, Status> {
    match link {
        None => std::future::pending().await,
        Some(link) => loop {
            match link.responses.message().await? {
                None => return Ok(None),
                Some(HeartbeatResponse { message: None }) => {}
                Some(HeartbeatResponse { message }) => return Ok(message),
            }
        },
    }
}
