//! Prometheus metrics of the store. Label values are names of calls, outcomes and bulkheads
//! from the source code, so clients cannot add time series.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool::Status;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        MetricType, counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram,
    },
    registry::Registry,
};
use tokio::time::Instant;

use crate::pg::{
    bulkhead::Bulkhead,
    connections::Pool,
    error::{Result, StoreError},
    tx::Completed,
};

const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 8.0,
];

/// Names and values of N labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Whether a call may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// What is wrong with the database, if anything.
#[derive(Debug, Default)]
struct Trouble {
    /// The first failed call since the last success.
    away_since: Option<Instant>,
    /// The first writing call that failed, and when, until a transaction has written something or the
    /// same call succeeds. A server that is read-only, or whose disk is full, still answers reads, and
    /// transactions that turn out to have nothing to write.
    unwritable: Option<(&'static str, Instant)>,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    transactions: Family<Labels<2>, Counter>,
    retries: Family<Labels<1>, Counter>,
    seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    /// 1 after a success, 0 after an unavailability.
    up: AtomicI64,
    started: Instant,
    /// Nanoseconds after `started`. 0 means never.
    last_success: AtomicU64,
    trouble: Mutex<Trouble>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            transactions: Family::default(),
            retries: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            up: AtomicI64::new(0),
            started: Instant::now(),
            last_success: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Transactions by name and outcome";
        registry.register("database_transactions", help, self.transactions.clone());
        let help = "Transactions retried after a conflict or a lost connection";
        registry.register("database_retries", help, self.retries.clone());
        let help = "Duration of transactions, including the wait for a connection and retries";
        registry.register("database_transaction_seconds", help, self.seconds.clone());
    }

    pub(crate) fn start(&self, name: &'static str, kind: Kind) -> Meter<'_> {
        Meter {
            metrics: self,
            name,
            kind,
            started: Instant::now(),
            outcome: "cancelled",
        }
    }

    pub(crate) fn last_success(&self) -> Option<Instant> {
        let nanos = self.last_success.load(Ordering::Relaxed);
        (nanos > 0).then(|| self.started + Duration::from_nanos(nanos))
    }

    pub(crate) fn away_since(&self) -> Option<Instant> {
        self.trouble().away_since
    }

    pub(crate) fn unwritable_since(&self) -> Option<Instant> {
        self.trouble().unwritable.map(|(_, since)| since)
    }

    fn succeeded(&self, name: &'static str, wrote: bool) {
        let nanos = self.started.elapsed().as_nanos().max(1);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.last_success.fetch_max(nanos, Ordering::Relaxed);
        self.up.store(1, Ordering::Relaxed);
        let mut trouble = self.trouble();
        trouble.away_since = None;
        trouble
            .unwritable
            .take_if(|(failed, _)| wrote || *failed == name);
    }

    fn was_unavailable(&self, name: &'static str, kind: Kind) {
        self.up.store(0, Ordering::Relaxed);
        let mut trouble = self.trouble();
        let now = Instant::now();
        trouble.away_since.get_or_insert(now);
        if kind == Kind::Write {
            trouble.unwritable.get_or_insert((name, now));
        }
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one call on drop, so that a cancelled one is counted too.
pub(crate) struct Meter<'a> {
    metrics: &'a Metrics,
    name: &'static str,
    kind: Kind,
    started: Instant,
    outcome: &'static str,
}

impl Meter<'_> {
    pub(crate) fn retry(&mut self) {
        let labels = [("name", self.name)];
        self.metrics.retries.get_or_create(&labels).inc();
    }

    pub(crate) fn finish<T>(mut self, result: Result<Completed<T>>) -> Result<T> {
        self.outcome = outcome(&result);
        match &result {
            Ok(committed) => self.metrics.succeeded(self.name, committed.wrote),
            Err(error) if error.is_unavailable() => {
                self.metrics.was_unavailable(self.name, self.kind);
            }
            Err(_) => {}
        }
        Ok(result?.value)
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        let Meter { name, outcome, .. } = *self;
        let seconds = self.started.elapsed().as_secs_f64();
        let labels = [("name", name), ("outcome", outcome)];
        self.metrics.transactions.get_or_create(&labels).inc();
        let histogram = self.metrics.seconds.get_or_create(&[("name", name)]);
        histogram.observe(seconds);
    }
}

fn outcome<T>(result: &Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(StoreError::Unavailable { .. }) => "unavailable",
        Err(StoreError::Conflict(_)) => "conflict",
        Err(StoreError::Schema(_)) => "schema",
        Err(StoreError::Query(_)) => "refused",
        Err(StoreError::Damaged(_)) => "damaged",
    }
}

/// Gauges that are computed during the scrape.
#[derive(Debug)]
pub(crate) struct StateCollector {
    pub(crate) pools: Arc<[Pool; 4]>,
    pub(crate) metrics: Arc<Metrics>,
}

impl StateCollector {
    fn pools(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        value: impl Fn(Status) -> usize,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (pool, bulkhead) in self.pools.iter().zip(Bulkhead::ALL) {
            let gauge = ConstGauge::new(i64::try_from(value(pool.status())).unwrap_or(i64::MAX));
            let labels = [("bulkhead", bulkhead.as_str())];
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn availability(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let up = ConstGauge::new(self.metrics.up.load(Ordering::Relaxed));
        let help = "1 if the last call succeeded, 0 if the database was unavailable";
        up.encode(encoder.encode_descriptor("database_up", help, None, MetricType::Gauge)?)?;
        let Some(last) = self.metrics.last_success() else {
            return Ok(());
        };
        let age = ConstGauge::new(last.elapsed().as_secs_f64());
        let name = "database_last_success_age_seconds";
        let help = "Time since the last successful call";
        age.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        let help = "Open connections to the database";
        self.pools(encoder, "database_pool_size", help, |s| s.size)?;
        let help = "Connections to the database in use";
        self.pools(encoder, "database_pool_in_use", help, |s| {
            s.size.saturating_sub(s.available)
        })?;
        let help = "Calls that wait for a connection";
        self.pools(encoder, "database_pool_waiting", help, |s| s.waiting)?;
        self.availability(encoder)
    }
}
