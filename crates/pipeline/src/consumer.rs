//! The consumer: stores reports from the queue in the database, in batches.
//!
//! One transaction stores a batch: history, watermarks, books and latest vitals. Only after it has committed does the
//! consumer send the acknowledgements and settle the reports.
//!
//! An outage or an overload of the database stops the consumer, and counts against no report. A batch that takes too
//! long is stored in smaller parts. A batch that the database refuses for its data is split until the report at fault is
//! alone; after five attempts that report becomes a dead letter and its numbers a gap, so that its agent can continue.
//! Whatever fails, every report is either settled after a commit, or delivered again, or sent again by its agent.

mod acks;
mod gathering;
mod gauge;
mod pace;
mod part_size;
mod storing;

use std::{collections::BTreeMap, mem, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use svc_common::periodic::sleep_until;
use svc_store::{AgentId, GapKind, GapRow, Range, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use acks::{Acks, PendingAcks, Streams};
use gathering::Gathering;
pub use gauge::DepthGauge;
use part_size::PartSize;
use storing::{Refused, Stopped, Storing};

use crate::{
    export::Export,
    metrics::PipelineMetrics,
    queue::{Delivery, Origin, Parcel, Queue, Receipt},
};

const AFTER_A_PANIC: Duration = Duration::from_secs(1);

/// How long reports may wait in a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// The longest time for which reports are gathered before they are stored.
    pub batch: Duration,
    /// How long a report is put back while it waits for an earlier report of its agent.
    pub order: Duration,
}

/// The consumer of one shard.
#[derive(Debug)]
pub struct Consumer {
    shard: usize,
    gathering: Arc<Gathering>,
    store: Store,
    part_size: PartSize,
    order_patience: Duration,
    acks: Acks,
    metrics: PipelineMetrics,
    export: Export,
}

/// The watermarks after the commits of a batch. An agent that is not active has none. That of an agent whose reports were
/// left out may be 0, which means that it is not known.
type Watermarks = BTreeMap<AgentId, i64>;

/// The origin and the receipt of each parcel of a batch. The n-th belongs to the n-th range.
type Deliveries = [(Origin, Receipt)];

/// The result of a batch.
#[derive(Default)]
struct Outcome {
    watermarks: Watermarks,
    /// The indices of late reports, and of refused ones whose dead letter could not be recorded.
    unanswered: Vec<usize>,
    acks: PendingAcks,
}

impl Consumer {
    /// One consumer for each shard.
    pub fn for_all_shards(
        queue: &Queue,
        store: &Store,
        acks: impl Fn() -> Acks,
        metrics: &PipelineMetrics,
        export: &Export,
        waits: Waits,
    ) -> Vec<Self> {
        let gathering = Arc::new(Gathering::new(queue, waits.batch));
        let consumer = |shard| Self {
            shard,
            gathering: gathering.clone(),
            store: store.clone(),
            part_size: PartSize::default(),
            order_patience: waits.order,
            acks: acks(),
            metrics: metrics.clone(),
            export: export.clone(),
        };
        (0..gathering.shards()).map(consumer).collect()
    }

    /// Consumes until `stop`, and then stores what exists in this process alone.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            // A step that panics is dropped with its batch. JetStream delivers the batch again, or its agents send it again.
            // Without this, one message could end every process that it is delivered to.
            let step = AssertUnwindSafe(self.step(&stop)).catch_unwind();
            if step.await.is_err() {
                tracing::error!(shard = self.shard, "a batch made the consumer panic");
                sleep_until(Instant::now() + AFTER_A_PANIC, &stop).await;
            }
        }
        let remaining = self.gathering.remaining(self.shard).await;
        if !remaining.is_empty() {
            self.pass(remaining, &stop).await;
        }
        Ok(())
    }

    async fn step(&self, stop: &CancellationToken) {
        if let Some(mut due) = self.gathering.next(self.shard, stop).await {
            self.pass(mem::take(&mut due.batch), stop).await;
        }
    }

    /// Stores a batch and settles it.
    async fn pass(&self, batch: Vec<Delivery>, stop: &CancellationToken) {
        self.measure(&batch);
        let split = |Delivery { parcel, receipt }| (parcel.range, (parcel.origin, receipt));
        let (ranges, deliveries): (Vec<_>, Vec<_>) = batch.into_iter().map(split).unzip();
        match self.store(&ranges, &deliveries, stop).await {
            Ok(outcome) => self.settle(ranges, deliveries, outcome).await,
            Err(Stopped) => put_back_all(ranges, deliveries).await,
        }
    }

    async fn store(
        &self,
        ranges: &[Range],
        deliveries: &Deliveries,
        stop: &CancellationToken,
    ) -> Result<Outcome, Stopped> {
        let mut storing = Storing::new(self, ranges, deliveries, stop);
        let refused = storing.store().await?;
        let mut outcome = Outcome {
            watermarks: storing.watermarks,
            unanswered: storing.late,
            ..Outcome::default()
        };
        for Refused { index, reason } in refused {
            let (origin, receipt) = &deliveries[index];
            let range = &ranges[index];
            match self.dead_letter(range, origin, receipt, &reason).await {
                None => outcome.unanswered.push(index),
                Some(marks) => {
                    self.metrics.dead_letters.inc();
                    outcome.acks.dead_letter(origin.instance, range);
                    for (agent, acked) in &marks {
                        outcome.acks.watermark(origin.instance, *agent, *acked);
                    }
                    outcome.watermarks.extend(marks);
                }
            }
        }
        Ok(outcome)
    }

    /// Records a report that the database refuses as a dead letter, and its numbers as a gap, which moves the agent's
    /// watermark past them. `None` if either fails: the report then stays in the queue, and the next delivery tries
    /// again. The letter is recorded first, because once the watermark has moved the report would be skipped.
    async fn dead_letter(
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
        receipt.dead_letter(&parcel, reason).await.ok()?;
        let marks = self.store.samples_append(&[as_gap(range, reason)]).await;
        let marks = marks.ok()?.into_iter();
        Some(marks.map(|mark| (mark.agent_id, mark.acked_seq)).collect())
    }

    /// Answers the queue for each report of a batch, and sends what is acknowledged with its dead letters.
    ///
    /// A report is settled if its agent's watermark has reached its last number: then it is stored, or was stored
    /// before. It is also settled if there is no watermark, because an agent that is not active stores nothing. A report
    /// beyond the watermark is put back, because an earlier one is missing, until it was put back for `order_patience`: a report
    /// that the queue has lost never arrives, and after the loss was detected the agent sends all of them again.
    /// A late report, and a refused one without a dead letter, are put back in any case.
    async fn settle(
        &self,
        ranges: Vec<Range>,
        deliveries: Vec<(Origin, Receipt)>,
        outcome: Outcome,
    ) {
        let Outcome {
            watermarks,
            unanswered,
            acks,
        } = outcome;
        let mut committed = Vec::new();
        for (index, (range, (origin, receipt))) in ranges.into_iter().zip(deliveries).enumerate() {
            let watermark = watermarks.get(&range.agent_id).copied();
            let stored = watermark.is_none_or(|acked| acked >= range.last_seq);
            let expired = receipt.put_back_for() > self.order_patience;
            if (stored || expired) && !unanswered.contains(&index) {
                receipt.settle().await;
                if self.export.is_on() && watermark.is_some_and(|acked| acked >= range.last_seq) {
                    committed.push(range);
                }
            } else {
                self.metrics.put_back.inc();
                receipt.put_back(Parcel { range, origin }).await;
            }
        }
        self.acks.send(acks).await;
        self.export.offer(committed);
    }

    fn measure(&self, batch: &[Delivery]) {
        let samples = batch
            .iter()
            .map(|delivery| delivery.parcel.range.samples.len());
        let redelivered = batch
            .iter()
            .filter(|delivery| delivery.receipt.is_redelivered());
        self.metrics.batch_ranges.observe(batch.len() as f64);
        self.metrics
            .batch_samples
            .observe(samples.sum::<usize>() as f64);
        self.metrics.redelivered.inc_by(redelivered.count() as u64);
    }
}

/// Returns a batch that could not be stored before the stop. Another consumer gets it from JetStream; what was in the
/// in-process queue is sent again by its agents.
async fn put_back_all(ranges: Vec<Range>, deliveries: Vec<(Origin, Receipt)>) {
    let reports = ranges.len();
    tracing::warn!(
        reports,
        "stopping while the database is unavailable: putting reports back"
    );
    for (range, (origin, receipt)) in ranges.into_iter().zip(deliveries) {
        receipt.put_back(Parcel { range, origin }).await;
    }
}

/// The range as one gap, without its samples.
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
