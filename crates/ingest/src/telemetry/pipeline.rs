//! Metrics of the samples' path: the queue, the consumer and the acknowledgements.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::queue::Depth;

/// Metrics of the samples' path.
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
    /// Sequence numbers acknowledged to agents.
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
        register! { registry, self;
            queue_ranges => "queue_ranges", "Reports in the metrics queue";
            queue_samples => "queue_samples", "Samples in the metrics queue (in-process queue only)";
            queue_bytes => "queue_bytes", "Bytes in the metrics queue";
            queue_lag => "queue_lag", "Reports that no consumer has settled yet";
            queue_up => "queue_up", "Whether the metrics queue answers";
            queue_oldest_seconds => "queue_oldest_seconds", "Age of the oldest report in the metrics queue";
            batch_ranges => "batch_ranges", "Reports in a consumer's batch";
            batch_samples => "batch_samples", "Samples in a consumer's batch";
            commit_seconds => "commit_seconds", "From a batch to its commit";
            redelivered => "queue_redelivered", "Reports that the queue delivered again";
            put_back => "queue_put_back", "Reports put back because an earlier one was missing";
            dead_letters => "dead_letters", "Reports that the database refused for good";
            acknowledged => "samples_acknowledged", "Sequence numbers acknowledged to agents";
            rejected => "samples_rejected", "Samples that broke a rule of the protocol";
            duplicates => "samples_duplicate", "Samples that agents sent again over one stream";
        }
    }
}
