//! A small fleet in this process, for the tests of faults.
//!
//! An agent behaves as the wire contract asks: it continues after the service's watermark, follows
//! retry hints, backs off, and on Drain connects before it leaves. It keeps a ledger of its
//! acknowledgements, which the audit compares with the database.

mod keys;
mod member;
mod settings;
mod update;

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use svc_harness::{AuditReport, Balance, PATIENCE, eventually};
use svc_proto::v1::UpdateState;
use tokio::{task::JoinSet, time::sleep};

pub use self::keys::KeyCounts;
use self::member::{Member, Record};
use crate::{AUTO, ActiveAgent, Site, token};

const CONCURRENT_REGISTRATIONS: usize = 16;
/// What a connection may take on a busy machine.
const PATIENCE_PER_AGENT: Duration = Duration::from_millis(20);

/// How the agents of a fleet behave.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two samples.
    pub every: Duration,
    /// How long an agent waits for a connection and for Welcome.
    pub patience: Duration,
    /// How long the network may be dead before an agent notices.
    pub keepalive: Duration,
    /// Before the first attempt to reconnect; doubled with each failure.
    pub backoff: Duration,
}

impl Pace {
    /// As often as an agent may report: faster, and a backlog would grow.
    pub const BRISK: Self = Self {
        every: Duration::from_millis(500),
        patience: Duration::from_secs(10),
        keepalive: Duration::from_secs(30),
        backoff: Duration::from_millis(200),
    };
    pub const STEADY: Self = Self {
        every: Duration::from_secs(1),
        patience: Duration::from_secs(10),
        keepalive: Duration::from_secs(10),
        backoff: Duration::from_secs(1),
    };
}

/// What agents do beyond reporting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    Nothing,
    Updates,
    /// Settings, and requests for new keys.
    Changes,
}

/// Running agents. Dropping the fleet cuts their connections.
#[derive(Debug)]
pub struct Fleet {
    members: Vec<Arc<Member>>,
    sampling: Arc<AtomicBool>,
    _running: JoinSet<()>,
}

impl Fleet {
    /// Registers `count` machines, numbered from `first`, and starts their agents. The addresses
    /// take turns.
    pub async fn start(
        site: &Site,
        addresses: &[SocketAddr],
        first: u32,
        count: u32,
        pace: Pace,
    ) -> Result<Self> {
        let machines = first..first + count;
        Self::with(Follows::Nothing, site, addresses, machines, pace).await
    }

    /// The same with agents that take the releases that they are offered: each says its steps, leaves for a moment, and comes
    /// back to another address.
    pub async fn updating(
        site: &Site,
        addresses: &[SocketAddr],
        first: u32,
        count: u32,
        pace: Pace,
    ) -> Result<Self> {
        let machines = first..first + count;
        Self::with(Follows::Updates, site, addresses, machines, pace).await
    }

    /// The same with agents that take settings, and change their keys when they are asked. The machines are numbered from 0.
    pub async fn changing(
        site: &Site,
        addresses: &[SocketAddr],
        count: u32,
        pace: Pace,
    ) -> Result<Self> {
        Self::with(Follows::Changes, site, addresses, 0..count, pace).await
    }

    async fn with(
        follows: Follows,
        site: &Site,
        addresses: &[SocketAddr],
        machines: Range<u32>,
        pace: Pace,
    ) -> Result<Self> {
        let secret = token(site, AUTO.uses(100_000)).await?;
        let registrations = machines.map(|number| {
            let address = addresses[number as usize % addresses.len()];
            ActiveAgent::with_token(address, number, &secret)
        });
        let agents: Vec<ActiveAgent> = stream::iter(registrations)
            .buffer_unordered(CONCURRENT_REGISTRATIONS)
            .try_collect()
            .await?;
        let sampling = Arc::new(AtomicBool::new(true));
        let (mut members, mut running) = (Vec::new(), JoinSet::new());
        for (turn, agent) in agents.into_iter().enumerate() {
            let member = Arc::new(Member::new(agent, follows)?);
            members.push(member.clone());
            running.spawn(member.run(addresses.to_vec(), turn, pace, sampling.clone()));
        }
        let fleet = Self {
            members,
            sampling,
            _running: running,
        };
        fleet.all_connected().await?;
        Ok(fleet)
    }

    /// The same, and waits until every agent has had an acknowledgement. The machines are numbered
    /// from 0.
    pub async fn reporting(
        site: &Site,
        addresses: &[SocketAddr],
        count: u32,
        pace: Pace,
    ) -> Result<Self> {
        let fleet = Self::start(site, addresses, 0, count, pace).await?;
        fleet.all_acked_again().await?;
        Ok(fleet)
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn connected(&self) -> usize {
        self.count(|record| record.connected)
    }

    pub async fn all_connected(&self) -> Result<()> {
        let patience = PATIENCE + PATIENCE_PER_AGENT * u32::try_from(self.len())?;
        svc_sandbox::eventually("all agents are connected", patience, async || {
            self.connected() == self.len()
        })
        .await
    }

    /// Waits until every agent has had a new acknowledgement after `since`.
    pub async fn all_acked_since(&self, since: Instant) -> Result<()> {
        eventually("all agents are acknowledged again", async || {
            let acked = |record: &Record| record.acked_at.last().is_some_and(|at| *at > since);
            self.count(acked) == self.len()
        })
        .await
    }

    /// Waits until every agent has had a new acknowledgement from now on.
    pub async fn all_acked_again(&self) -> Result<()> {
        self.all_acked_since(Instant::now()).await
    }

    /// Waits until the backlog is acknowledged, at the rate at which agents may report.
    pub async fn catches_up(&self) -> Result<()> {
        let patience = Duration::from_mins(3);
        svc_sandbox::eventually("the backlog is acknowledged", patience, async || {
            self.count(|record| record.ledger.unacked() <= 2) == self.len()
        })
        .await
    }

    /// How many acknowledgements arrived in between.
    pub fn acks_between(&self, from: Instant, to: Instant) -> usize {
        let times = self.each(|record| record.acked_at.clone());
        let within = |at: &Instant| *at > from && *at < to;
        times.into_iter().flatten().filter(within).count()
    }

    /// Fails if an acknowledgement arrives in this time.
    pub async fn no_acks_for(&self, length: Duration) -> Result<()> {
        let from = Instant::now();
        sleep(length).await;
        let acks = self.acks_between(from, Instant::now());
        ensure!(
            acks == 0,
            "{acks} acknowledgements while nothing was stored"
        );
        Ok(())
    }

    /// How many samples have been acknowledged.
    pub fn acked(&self) -> u64 {
        self.each(|record| record.ledger.acked()).iter().sum()
    }

    /// The newest JWT of each agent.
    pub fn jwts(&self) -> Vec<String> {
        self.each(|record| record.jwt.clone())
    }

    /// How often streams were refused because of their JWTs.
    pub fn refused_jwts(&self) -> u32 {
        self.each(|record| record.refused_jwts).iter().sum()
    }

    /// How many agents have taken an offer.
    pub fn offered(&self) -> usize {
        let offered = |update: &UpdateState| update.serial > 0;
        self.count(|record| record.update.as_ref().is_some_and(offered))
    }

    /// What happened to the keys of each agent.
    pub fn key_counts(&self) -> Vec<KeyCounts> {
        self.each(|record| record.keys.counts)
    }

    /// The id and the fingerprint of the present key of each agent, sorted, as `SELECT id, encode(key, 'hex')` has them.
    pub fn present_keys(&self) -> Result<Vec<String>> {
        let line = |member: &Arc<Member>| {
            let key = member.record().keys.fingerprint()?;
            Ok(format!("{}|{key}", member.agent.id))
        };
        let mut lines: Vec<String> = self.members.iter().map(line).collect::<Result<_>>()?;
        lines.sort();
        Ok(lines)
    }

    /// Waits until no agent has a next key.
    pub async fn keys_settle(&self) -> Result<()> {
        let settled = |record: &Record| record.connected && !record.keys.has_next();
        eventually("all keys are changed", async || {
            self.count(settled) == self.len()
        })
        .await
    }

    /// How often each agent has been welcomed.
    pub fn streams(&self) -> Vec<u32> {
        self.each(|record| record.streams)
    }

    /// From the first sending of the oldest sample to its acknowledgement, for each of these.
    pub fn latencies(&self) -> Vec<Duration> {
        self.each(|record| record.latencies.clone()).concat()
    }

    /// From the loss of a stream to the next Welcome, for each loss.
    pub fn absences(&self) -> Vec<Duration> {
        self.each(|record| record.absences.clone()).concat()
    }

    /// Takes no more samples, and waits until all are acknowledged.
    pub async fn settle(&self) -> Result<()> {
        self.sampling.store(false, Ordering::Relaxed);
        let settled = |record: &Record| record.connected && record.ledger.unacked() == 0;
        eventually("everything is acknowledged", async || {
            self.count(settled) == self.len()
        })
        .await
        .with_context(|| {
            let states = self.each(|record| (record.connected, record.ledger.unacked()));
            format!("(connected, unacknowledged): {states:?}")
        })
    }

    /// Takes samples again after `settle` or `audit`.
    pub fn resume(&self) {
        self.sampling.store(true, Ordering::Relaxed);
    }

    /// Settles, and fails unless every acknowledged sample is stored once and the books balance.
    pub async fn audit(&self, site: &Site) -> Result<()> {
        self.settle().await?;
        let url = site.database_url();
        let report = AuditReport::of(&self.balances(), Some(&url), self.len() as u64).await?;
        report.ensure_complete()
    }

    pub fn balances(&self) -> Vec<Balance> {
        let members = self.members.iter();
        members
            .map(|member| member.record().ledger.balance(&member.agent.id))
            .collect()
    }

    fn each<T>(&self, value: impl Fn(&Record) -> T) -> Vec<T> {
        let members = self.members.iter();
        members.map(|member| value(&member.record())).collect()
    }

    fn count(&self, is: impl Fn(&Record) -> bool) -> usize {
        self.each(is).into_iter().filter(|is| *is).count()
    }
}
