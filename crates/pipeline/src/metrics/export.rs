//! Metrics of the export over OTLP.

use prometheus_client::metrics::{counter::Counter, family::Family};

svc_common::metrics! {
    /// Metrics of the export.
    pub struct ExportMetrics {
        samples: Family<[(&'static str, &'static str); 1], Counter>,
            "export_samples", "Samples offered to the receiver of the export, by outcome";
    }
}

impl ExportMetrics {
    pub fn sent(&self, samples: usize) {
        self.count("sent", samples);
    }

    /// There was no room, or the receiver was away for too long.
    pub fn dropped(&self, samples: usize) {
        self.count("dropped", samples);
    }

    /// The receiver is away, and they stay in the stream of JetStream.
    pub fn postponed(&self, samples: usize) {
        self.count("postponed", samples);
    }

    /// The receiver does not want them.
    pub fn refused(&self, samples: usize) {
        self.count("refused", samples);
    }

    fn count(&self, outcome: &'static str, samples: usize) {
        if samples == 0 {
            return;
        }
        let counter = self.samples.get_or_create(&[("outcome", outcome)]);
        counter.inc_by(samples as u64);
    }
}
