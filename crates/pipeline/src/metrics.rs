//! Metrics of the samples' path: the queue, the consumer, the acknowledgements and the export.

mod export;

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};

pub use export::ExportMetrics;

use crate::queue::Depth;

const SIZES: [f64; 10] = [
    1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 2000.0, 4000.0, 8000.0,
];
const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 8.0,
];

svc_common::metrics! {
    /// Metrics of the samples' path.
    pub struct PipelineMetrics {
        pub reports_waiting: Gauge, "reports_waiting", "Reports that wait for room to be read or decoded";
        queue_ranges: Gauge, "queue_ranges", "Reports in the metrics queue";
        queue_samples: Gauge, "queue_samples", "Samples in the metrics queue (in-process queue only)";
        queue_bytes: Gauge, "queue_bytes", "Bytes in the metrics queue";
        queue_lag: Gauge, "queue_lag", "Reports that no consumer has settled yet";
        /// 0 while the queue does not answer.
        pub queue_up: Gauge, "queue_up", "Whether the metrics queue answers";
        queue_oldest_seconds: Gauge<f64, AtomicU64>, "queue_oldest_seconds", "Age of the oldest report in the metrics queue";
        pub batch_ranges: Histogram = Histogram::new(SIZES), "batch_ranges", "Reports in a consumer's batch";
        pub batch_samples: Histogram = Histogram::new(SIZES), "batch_samples", "Samples in a consumer's batch";
        pub commit_seconds: Histogram = Histogram::new(SECONDS), "commit_seconds", "From a batch to its commit";
        pub redelivered: Counter, "queue_redelivered", "Reports that the queue delivered again";
        pub put_back: Counter, "queue_put_back", "Reports put back because an earlier one was missing";
        pub dead_letters: Counter, "dead_letters", "Reports that the database refused for good";
        pub acknowledged: Counter, "samples_acknowledged", "Sequence numbers acknowledged to agents";
        pub rejected: Counter, "samples_rejected", "Samples that broke a rule of the protocol";
        pub samples_compacted: Counter, "samples_compacted", "Samples compacted by this instance";
        pub duplicates: Counter, "samples_duplicate", "Samples that agents sent again over one stream";
    }
}

impl PipelineMetrics {
    /// Bytes in the queue, and the age of the oldest report in seconds, as last measured.
    pub fn queued(&self) -> (i64, f64) {
        (self.queue_bytes.get(), self.queue_oldest_seconds.get())
    }

    pub fn depth(&self, depth: &Depth) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.queue_ranges.set(whole(depth.ranges));
        self.queue_samples.set(whole(depth.samples.unwrap_or(0)));
        self.queue_bytes.set(whole(depth.bytes));
        self.queue_oldest_seconds.set(depth.oldest.as_secs_f64());
        self.queue_lag.set(whole(depth.lag));
    }
}
