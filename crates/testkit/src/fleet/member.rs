//! One agent of a fleet: samples, reports, and reconnects until it is dropped.

use std::{
    net::SocketAddr,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use jiff::Timestamp;
use svc_harness::{Ledger, Settled, Taken};
use svc_proto::{
    ClientMessage, ServerMessage,
    v1::{
        Hello, Report, Sample, SettingsState, UpdateOffer, UpdateState, UpdateStep,
        ingest_service_client::IngestServiceClient,
    },
};
use tokio::time::{Instant as Deadline, MissedTickBehavior, interval, sleep_until, timeout};
use tonic::{Code, Status, transport::Endpoint};
use tonic_types::StatusExt;

use super::{
    Follows, Pace,
    keys::{Keys, place},
    settings, update,
};
use crate::{ActiveAgent, HeartbeatCall, grpc::channel_with, sample, wire_time};

const MOST_DOUBLINGS: u32 = 4;

/// An agent and what it has seen.
#[derive(Debug)]
pub(super) struct Member {
    pub agent: ActiveAgent,
    record: Mutex<Record>,
}

/// What happened to an agent, as the agent saw it.
#[derive(Debug)]
pub(super) struct Record {
    /// The newest JWT.
    pub jwt: String,
    /// How often a stream was refused because of its JWT.
    pub refused_jwts: u32,
    pub ledger: Ledger,
    /// What it says of updates. `None`: it takes no offers.
    pub update: Option<UpdateState>,
    /// What it says of settings. `None`: it takes none, and ignores requests for new keys.
    pub settings: Option<SettingsState>,
    pub keys: Keys,
    /// Streams that were welcomed.
    pub streams: u32,
    pub connected: bool,
    /// When new samples were acknowledged.
    pub acked_at: Vec<Instant>,
    pub latencies: Vec<Duration>,
    pub absences: Vec<Duration>,
}

impl Record {
    fn new(agent: &ActiveAgent, follows: Follows) -> Result<Self> {
        Ok(Self {
            jwt: agent.jwt.clone(),
            refused_jwts: 0,
            ledger: Ledger::default(),
            update: (follows == Follows::Updates).then(update::ready),
            settings: (follows == Follows::Changes).then(SettingsState::default),
            keys: Keys::new(agent.agent.identity.clone())?,
            streams: 0,
            connected: false,
            acked_at: Vec::new(),
            latencies: Vec::new(),
            absences: Vec::new(),
        })
    }

    fn settled(&mut self, settled: &Settled) {
        if settled.samples > 0 {
            self.acked_at.push(Instant::now());
        }
        let slowest = settled.slowest_us.map(Duration::from_micros);
        self.latencies.extend(slowest);
    }
}

impl Member {
    pub fn new(agent: ActiveAgent, follows: Follows) -> Result<Self> {
        let record = Mutex::new(Record::new(&agent, follows)?);
        Ok(Self { agent, record })
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the agent; it starts with the address whose turn it is.
    pub async fn run(
        self: Arc<Self>,
        addresses: Vec<SocketAddr>,
        turn: usize,
        pace: Pace,
        sampling: Arc<AtomicBool>,
    ) {
        let runner = Runner {
            member: self,
            addresses,
            turn,
            pace,
            sampling,
            failures: 0,
            lost_at: None,
        };
        runner.run().await;
    }
}

struct Runner {
    member: Arc<Member>,
    addresses: Vec<SocketAddr>,
    turn: usize,
    pace: Pace,
    sampling: Arc<AtomicBool>,
    failures: u32,
    lost_at: Option<Instant>,
}

impl Runner {
    async fn run(mut self) {
        let mut call: Option<HeartbeatCall> = None;
        let mut connect_at = Some(Deadline::now());
        let mut tick = interval(self.pace.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let connect = sleep_until(connect_at.unwrap_or_else(Deadline::now));
            tokio::select! {
                _ = tick.tick() => {
                    self.take_sample();
                    if let Some(call) = &call {
                        self.report(call);
                    }
                }
                received = next(&mut call) => match received {
                    Ok(Some(ServerMessage::Offer(offer))) => {
                        if self.takes(&offer) && let Some(staged) = call.take() {
                            connect_at = Some(self.restart(staged).await);
                        }
                    }
                    Ok(Some(message)) => {
                        let acked = matches!(message, ServerMessage::Ack(_));
                        if let Some(call) = &call {
                            self.follow(call, &message).await;
                        }
                        if let Some(slot) = self.handle(message) {
                            connect_at = Some(Deadline::now() + slot);
                        }
                        if acked && self.is_trying() && let Some(call) = &call {
                            self.say(call, UpdateStep::Approved).await;
                        }
                    }
                    Ok(None) => (call, connect_at) = (None, Some(self.lost(None))),
                    Err(status) => (call, connect_at) = (None, Some(self.lost(Some(&status)))),
                },
                () = connect, if connect_at.is_some() => {
                    let place = self.lost_at.is_none().then(place).transpose();
                    match place.map_err(|later| Deadline::now() + later) {
                        Err(later) => connect_at = Some(later),
                        Ok(_place) => match self.connect().await {
                            Ok(welcomed) => {
                                self.report(&welcomed);
                                self.announce(&welcomed).await;
                                (call, connect_at) = (Some(welcomed), None);
                            }
                            Err(status) => connect_at = Some(self.retry_at(status.as_ref())),
                        },
                    }
                }
            }
        }
    }

    fn take_sample(&self) {
        if self.sampling.load(Ordering::Relaxed) {
            let now = Timestamp::now().as_millisecond();
            self.member.record().ledger.take(now);
        }
    }

    /// Sends what this stream has not been sent yet, as far as its channel has room.
    fn report(&self, call: &HeartbeatCall) {
        let unsent = || {
            let taken = self.member.record().ledger.next_report(now_us());
            (!taken.is_empty()).then(|| Report {
                samples: taken.into_iter().map(sample_of).collect(),
                gaps: vec![],
                update: None,
                ..Report::default()
            })
        };
        while call.try_report(unsent) {}
    }

    /// Does what settings and requests for a new key ask for.
    async fn follow(&self, call: &HeartbeatCall, message: &ServerMessage) {
        let (agent, nonce) = (&self.member.agent.id, &call.welcome.nonce);
        let answer = {
            let Record { settings, keys, .. } = &mut *self.member.record();
            match (settings, message) {
                (Some(state), ServerMessage::Settings(sent)) => {
                    settings::taken(state, sent).map(ClientMessage::Report)
                }
                (Some(_), ServerMessage::ChangeKey(_)) => {
                    let next = keys.asked(agent, nonce).expect("a key of this process");
                    next.map(ClientMessage::NewKey)
                }
                _ => None,
            }
        };
        self.answer(call, answer).await;
    }

    /// Announces the next key, if there is one, which the service may not know.
    async fn announce(&self, call: &HeartbeatCall) {
        let (agent, nonce) = (&self.member.agent.id, &call.welcome.nonce);
        let next = self.member.record().keys.announcement(agent, nonce);
        let next = next.expect("a key of this process");
        self.answer(call, next.map(ClientMessage::NewKey)).await;
    }

    /// What a stream loses that ends now, the next one says again.
    async fn answer(&self, call: &HeartbeatCall, answer: Option<ClientMessage>) {
        if let Some(answer) = answer {
            let _ = call.send(answer).await;
        }
    }

    /// Handles a message of the service; returns when to connect again if it is Drain, or if a next key can be used.
    fn handle(&mut self, message: ServerMessage) -> Option<Duration> {
        match message {
            ServerMessage::Ack(ack) => {
                let mut record = self.member.record();
                let rejected = ack.rejected.len();
                let settled = record
                    .ledger
                    .acknowledged(ack.up_to_seq, rejected, now_us());
                record.settled(&settled);
            }
            ServerMessage::Credential(credential) => self.member.record().jwt = credential.jwt,
            ServerMessage::Drain(drain) => {
                let slot = drain.reconnect_after.unwrap_or_default();
                return Some(Duration::try_from(slot).unwrap_or_default());
            }
            ServerMessage::KeyStored(stored) => return self.member.record().keys.stored(&stored),
            _ => {}
        }
        None
    }

    /// Whether it takes this offer. It notes what it takes.
    fn takes(&self, offer: &UpdateOffer) -> bool {
        let mut record = self.member.record();
        let known = record.update.as_ref();
        let taken = known.and_then(|known| update::taken(known, offer));
        let takes = taken.is_some();
        if takes {
            record.update = taken;
        }
        takes
    }

    fn is_trying(&self) -> bool {
        let update = &self.member.record().update;
        update
            .as_ref()
            .is_some_and(|update| update.step() == UpdateStep::Trying)
    }

    /// Returns what it says from this step on.
    fn step(&self, step: UpdateStep) -> UpdateState {
        let mut record = self.member.record();
        let update = record.update.get_or_insert_default();
        update.set_step(step);
        update.clone()
    }

    /// What a stream loses that ends now, the next Hello says again.
    async fn say(&self, call: &HeartbeatCall, step: UpdateStep) {
        let _ = call.says(self.step(step)).await;
    }

    /// Leaves for the restart of an update that it has taken. Returns when the new version connects.
    async fn restart(&mut self, call: HeartbeatCall) -> Deadline {
        self.say(&call, UpdateStep::Offered).await;
        self.say(&call, UpdateStep::Staged).await;
        self.member.record().connected = false;
        self.lost_at.get_or_insert_with(Instant::now);
        // Without an answer the agent starts again all the same, and the service counts the stream as lost.
        let _ = call.goodbye_for(update::BACK_WITHIN).await;
        self.step(UpdateStep::Trying);
        self.turn += 1;
        Deadline::now() + update::restart()
    }

    fn lost(&mut self, status: Option<&Status>) -> Deadline {
        let mut record = self.member.record();
        record.connected = false;
        record.keys.lost();
        drop(record);
        self.lost_at.get_or_insert_with(Instant::now);
        self.turn += 1;
        self.retry_at(status)
    }

    /// The service's hint, or else exponential backoff with full jitter.
    fn retry_at(&mut self, status: Option<&Status>) -> Deadline {
        self.failures += 1;
        let hint = status.and_then(|status| status.get_error_details().retry_info().cloned());
        let hint = hint.and_then(|hint| hint.retry_delay);
        let most = self.pace.backoff * 2_u32.pow(self.failures.min(MOST_DOUBLINGS) - 1);
        Deadline::now() + hint.unwrap_or_else(|| most.mul_f64(rand::random()))
    }

    /// `Err(None)` if there was no answer in time.
    async fn connect(&mut self) -> Result<HeartbeatCall, Option<Status>> {
        let mut opened = self.open_in_time().await;
        if let Err(status) = &opened
            && self.member.record().keys.falls_back(status.as_ref())
        {
            opened = self.open_in_time().await;
        }
        let call = opened.inspect_err(|status| self.not_opened(status.as_ref()))?;
        self.failures = 0;
        let absence = self.lost_at.take().map(|at| at.elapsed());
        let mut record = self.member.record();
        record.absences.extend(absence);
        record.streams += 1;
        record.connected = true;
        record.keys.welcomed();
        let settled = record.ledger.welcomed(call.welcome.acked_seq, now_us());
        record.settled(&settled);
        drop(record);
        Ok(call)
    }

    fn not_opened(&mut self, status: Option<&Status>) {
        self.turn += 1;
        if status.is_some_and(|status| status.code() == Code::Unauthenticated) {
            self.member.record().refused_jwts += 1;
        }
    }

    async fn open_in_time(&self) -> Result<HeartbeatCall, Option<Status>> {
        let address = self.addresses[self.turn % self.addresses.len()];
        match timeout(self.pace.patience, self.open(address)).await {
            Ok(Ok(opened)) => opened.map_err(Some),
            _ => Err(None),
        }
    }

    async fn open(&self, address: SocketAddr) -> Result<Result<HeartbeatCall, Status>> {
        let endpoint = Endpoint::from_static("https://localhost")
            .http2_keep_alive_interval(self.pace.keepalive)
            .keep_alive_timeout(self.pace.keepalive)
            .keep_alive_while_idle(true);
        let tls = self.member.record().keys.tls();
        let channel = channel_with(endpoint, tls, address).await?;
        let (jwt, update, settings) = {
            let record = self.member.record();
            let (update, settings) = (record.update.clone(), record.settings.clone());
            (record.jwt.clone(), update, settings)
        };
        let hello = Hello {
            settings,
            ..update::hello(self.member.agent.agent.hello(), update)
        };
        HeartbeatCall::open(IngestServiceClient::new(channel), &jwt, hello).await
    }
}

/// The next message of the service; waits forever while there is no stream.
async fn next(call: &mut Option<HeartbeatCall>) -> Result<Option<ServerMessage>, Status> {
    match call {
        Some(call) => call.next().await,
        None => std::future::pending().await,
    }
}

fn sample_of(taken: Taken) -> Sample {
    let at = Timestamp::from_millisecond(taken.at_ms).expect("a time of this process");
    Sample {
        sampled_at: Some(wire_time(at)),
        ..sample(taken.seq)
    }
}

/// Microseconds since the first call in this process.
fn now_us() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}
