//! What samples meet on their way: the queue, the consumer and the acknowledgement.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::queue::Depth;

#[derive(Clone, Debug)]
pub struct PipelineMetrics {
    queue_ranges: Gauge,
    queue_samples: Gauge,
    queue_bytes: Gauge,
    queue_oldest_seconds: Gauge<f64, AtomicU64>,
    queue_lag: Gauge,
    /// 0 while the queue does not answer.
    pub queue_up: Gauge,
    pub batch_ranges: Histogram,
    pub batch_samples: Histogram,
    pub commit_seconds: Histogram,
    pub redelivered: Counter,
    pub put_back: Counter,
    pub dead_letters: Counter,
    /// Numbers that agents were told are safe.
    pub acknowledged: Counter,
    pub rejected: Counter,
    /// Samples that agents sent again over one stream.
    pub duplicates: Counter,
}

impl Default for PipelineMetrics {
    fn default() -> Self {
        let sizes = || {
            Histogram::new([
                1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 2000.0, 4000.0, 8000.0,
            ])
        };
        Self {
            queue_ranges: Gauge::default(),
            queue_samples: Gauge::default(),
            queue_bytes: Gauge::default(),
            queue_oldest_seconds: Gauge::default(),
            queue_lag: Gauge::default(),
            queue_up: Gauge::default(),
            batch_ranges: sizes(),
            batch_samples: sizes(),
            commit_seconds: Histogram::new([
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 8.0,
            ]),
            redelivered: Counter::default(),
            put_back: Counter::default(),
            dead_letters: Counter::default(),
            acknowledged: Counter::default(),
            rejected: Counter::default(),
            duplicates: Counter::default(),
        }
    }
}

impl PipelineMetrics {
    pub fn depth(&self, depth: &Depth) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.queue_ranges.set(whole(depth.ranges));
        self.queue_samples.set(whole(depth.samples.unwrap_or(0)));
        self.queue_bytes.set(whole(depth.bytes));
        self.queue_oldest_seconds.set(depth.oldest.as_secs_f64());
        self.queue_lag.set(whole(depth.lag));
    }

    pub fn register(&self, registry: &mut Registry) {
        let gauges = [
            (
                "queue_ranges",
                "Reports in the metrics queue",
                &self.queue_ranges,
            ),
            (
                "queue_samples",
                "Samples in the metrics queue (of this process alone)",
                &self.queue_samples,
            ),
            (
                "queue_bytes",
                "Bytes in the metrics queue",
                &self.queue_bytes,
            ),
            (
                "queue_lag",
                "Reports that no consumer has settled yet",
                &self.queue_lag,
            ),
            (
                "queue_up",
                "Whether the metrics queue answers",
                &self.queue_up,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "queue_oldest_seconds",
            "Age of the oldest report in the metrics queue",
            self.queue_oldest_seconds.clone(),
        );
        self.register_consumer(registry);
        self.register_acknowledgements(registry);
    }

    fn register_consumer(&self, registry: &mut Registry) {
        let histograms = [
            (
                "batch_ranges",
                "Reports in a consumer's batch",
                &self.batch_ranges,
            ),
            (
                "batch_samples",
                "Samples in a consumer's batch",
                &self.batch_samples,
            ),
            (
                "commit_seconds",
                "From a batch to its commit",
                &self.commit_seconds,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
        let counters = [
            (
                "queue_redelivered",
                "Reports that came out of the queue again",
                &self.redelivered,
            ),
            (
                "queue_put_back",
                "Reports that came before others they follow",
                &self.put_back,
            ),
            (
                "dead_letters",
                "Reports that the database refused for good",
                &self.dead_letters,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    fn register_acknowledgements(&self, registry: &mut Registry) {
        let counters = [
            (
                "samples_acknowledged",
                "Sequence numbers that agents were told are safe",
                &self.acknowledged,
            ),
            (
                "samples_rejected",
                "Samples that broke a rule of the protocol",
                &self.rejected,
            ),
            (
                "samples_duplicate",
                "Samples that agents sent again over one stream",
                &self.duplicates,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }
}
