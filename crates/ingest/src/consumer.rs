//! From the queue into the database, in batches: history, watermarks, books and
//! latest vitals in one transaction; then, and only then, acknowledgements.
//!
//! A database that is away, slow or full stops the consumer and counts against
//! nothing. A batch that the database refuses is split until the one report that it
//! refuses stands alone; that one becomes a dead letter after five tries, and its
//! numbers a gap, so that its agent goes on. Whatever goes wrong, a report is either
//! settled after a commit, or delivered again, or sent again by its agent.

mod acks;
mod gauge;
mod storing;

use std::{collections::BTreeMap, time::Duration};

use svc_store::{AgentId, GapKind, GapRow, Range, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use acks::{Acks, Told};
pub use gauge::DepthGauge;
use storing::{Refused, Stopped, Storing};

use crate::{
    queue::{BATCH, Delivery, Origin, Parcel, Queue, Receipt, Receiver},
    telemetry::PipelineMetrics,
};

/// Between two batches, so that they are worth their commit: a transaction costs as
/// much as two dozen of its rows. A full batch is followed at once.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a report may wait for those before it. Its agent sends it again after that.
const STALE: Duration = Duration::from_secs(60);

/// The consumer of one shard.
#[derive(Debug)]
pub struct Consumer {
    pub receiver: Receiver,
    pub store: Store,
    pub acks: Acks,
    pub metrics: PipelineMetrics,
}

/// Where agents stand after the commits of a batch. One that is not active has no watermark.
type Watermarks = BTreeMap<AgentId, i64>;

/// What became of a batch.
#[derive(Default)]
struct Outcome {
    watermarks: Watermarks,
    /// Dead letters that could not be put away.
    unburied: Vec<usize>,
    told: Told,
}

impl Consumer {
    /// One for each shard.
    pub fn of_all_shards(
        queue: &Queue,
        store: &Store,
        acks: impl Fn() -> Acks,
        metrics: &PipelineMetrics,
    ) -> Vec<Self> {
        let consumer = |receiver| Self {
            receiver,
            store: store.clone(),
            acks: acks(),
            metrics: metrics.clone(),
        };
        queue.receivers().into_iter().map(consumer).collect()
    }

    /// Consumes until `stop`, and then what is left in this process, once.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            let batch = self.receiver.batch(BATCH).await;
            if batch.is_empty() {
                continue;
            }
            let (began, full) = (Instant::now(), BATCH.is_filled_by(&batch));
            self.pass(batch, &stop).await;
            if !full {
                let pause = tokio::time::sleep_until(began + PAUSE);
                stop.run_until_cancelled(pause).await;
            }
        }
        let rest = self.receiver.rest();
        if !rest.is_empty() {
            self.pass(rest, &stop).await;
        }
        Ok(())
    }

    /// Stores a batch, settles it, and lets the agents know.
    pub async fn pass(&self, batch: Vec<Delivery>, stop: &CancellationToken) {
        self.measure(&batch);
        let (mut ranges, mut slips) = (Vec::new(), Vec::new());
        for Delivery { parcel, receipt } in batch {
            ranges.push(parcel.range);
            slips.push((parcel.origin, receipt));
        }
        match self.store(&ranges, &slips, stop).await {
            Ok(outcome) => self.settle(ranges, slips, outcome).await,
            Err(Stopped) => give_back(ranges, slips).await,
        }
    }

    async fn store(
        &self,
        ranges: &[Range],
        slips: &[(Origin, Receipt)],
        stop: &CancellationToken,
    ) -> Result<Outcome, Stopped> {
        let mut storing = Storing::new(self, ranges, slips, stop);
        let refused = storing.store().await?;
        let mut outcome = Outcome {
            watermarks: storing.watermarks,
            ..Outcome::default()
        };
        for Refused { index, reason } in refused {
            let (origin, receipt) = &slips[index];
            match self.bury(&ranges[index], origin, receipt, &reason).await {
                None => outcome.unburied.push(index),
                Some(marks) => {
                    self.metrics.dead_letters.inc();
                    outcome.told.dead_letter(origin.instance, &ranges[index]);
                    outcome.watermarks.extend(marks);
                }
            }
        }
        Ok(outcome)
    }

    /// What was refused for good goes to the dead letters, and its numbers into a gap.
    /// `None` where that could not be: it stays in the queue.
    async fn bury(
        &self,
        range: &Range,
        origin: &Origin,
        receipt: &Receipt,
        reason: &str,
    ) -> Option<Watermarks> {
        let parcel = Parcel {
            range: range.clone(),
            origin: *origin,
        };
        receipt.bury(&parcel, reason).await.ok()?;
        let marks = self.store.samples_append(&[as_gap(range, reason)]).await;
        let marks = marks.ok()?.into_iter();
        Some(marks.map(|mark| (mark.agent_id, mark.acked_seq)).collect())
    }

    /// What is stored is settled; what is ahead of its agent's watermark goes back.
    async fn settle(&self, ranges: Vec<Range>, slips: Vec<(Origin, Receipt)>, outcome: Outcome) {
        let Outcome {
            watermarks,
            unburied,
            mut told,
        } = outcome;
        for (index, (range, (origin, receipt))) in ranges.into_iter().zip(slips).enumerate() {
            let watermark = watermarks.get(&range.agent_id).copied();
            if let Some(acked) = watermark {
                told.watermark(origin.instance, range.agent_id, acked);
            }
            let stored = watermark.is_none_or(|acked| acked >= range.last_seq);
            let stale = receipt.age() > STALE && !unburied.contains(&index);
            if stored || stale {
                receipt.settle().await;
            } else {
                self.metrics.put_back.inc();
                receipt.put_back(Parcel { range, origin }).await;
            }
        }
        self.acks.tell(told).await;
    }

    fn measure(&self, batch: &[Delivery]) {
        let samples = batch
            .iter()
            .map(|delivery| delivery.parcel.range.samples.len());
        let again = batch.iter().filter(|delivery| delivery.receipt.again);
        self.metrics.batch_ranges.observe(batch.len() as f64);
        self.metrics
            .batch_samples
            .observe(samples.sum::<usize>() as f64);
        self.metrics.redelivered.inc_by(again.count() as u64);
    }
}

/// Somebody else may have them at once; what is in this process alone is sent again.
async fn give_back(ranges: Vec<Range>, slips: Vec<(Origin, Receipt)>) {
    let reports = ranges.len();
    tracing::warn!(reports, "the database is away: reports are left for later");
    for (range, (origin, receipt)) in ranges.into_iter().zip(slips) {
        receipt.put_back(Parcel { range, origin }).await;
    }
}

/// The same numbers, none of them a sample.
fn as_gap(range: &Range, reason: &str) -> Range {
    Range {
        samples: Vec::new(),
        gaps: vec![GapRow {
            first_seq: range.first_seq,
            last_seq: range.last_seq,
            kind: GapKind::DeadLetter,
            reason: reason.to_owned().into(),
        }],
        ..*range
    }
}
