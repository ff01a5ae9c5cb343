//! Export of committed samples as metrics, over OTLP.
//!
//! The consumer offers the reports of a batch after their commit and after their acknowledgements. Offering never waits:
//! there is room for 16 MiB of samples, and what does not fit is dropped and counted. So a receiver that is slow, away or
//! wrong costs some memory and its own copy of the samples, and delays no agent. PostgreSQL has all of them. With JetStream
//! the samples then wait in a bounded stream on disk (`durable`), through outages of the receiver and restarts.
//!
//! A report that the queue delivers again is exported again, with the same times and values.

mod client;
mod durable;
mod mapping;
pub mod otlp;
mod points;
mod protocol;
mod sender;

use std::{sync::Arc, time::Duration};

use svc_store::{Range, Store};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::ExportMetrics,
    queue::{Queue, weight},
};
use client::Client;
pub use protocol::{Protocol, RETRIES, Receiver};
use sender::{REQUEST_SAMPLES, Sender};

/// How many bytes of samples may wait: about 30,000 samples with two disks.
const ROOM: usize = 16 << 20;
/// How many batches may wait. A batch of one sample without disks has about 300 bytes, so the room is full first.
const OFFERS: usize = 1 << 16;
/// How long the rest may take at a stop.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
/// Reports on their way to the exporter, and the room that they take.
type Offer = (Vec<Range>, OwnedSemaphorePermit);

/// Where consumers offer what they have committed. Without a receiver it takes nothing.
#[derive(Clone, Debug, Default)]
pub struct Export(Option<Outlet>);

#[derive(Clone, Debug)]
struct Outlet {
    offers: mpsc::Sender<Offer>,
    room: Arc<Semaphore>,
    metrics: ExportMetrics,
}

impl Export {
    /// `receiver` decides whether there is an exporter.
    pub fn new(
        receiver: Option<Receiver>,
        store: &Store,
        metrics: &ExportMetrics,
    ) -> Result<(Self, Option<Exporter>), rustls::Error> {
        let Some(receiver) = receiver else {
            return Ok((Self(None), None));
        };
        let (offers, waiting) = mpsc::channel(OFFERS);
        let outlet = Outlet {
            offers,
            room: Arc::new(Semaphore::new(ROOM)),
            metrics: metrics.clone(),
        };
        let retries = receiver.retries;
        let client = Client::new(receiver)?;
        let exporter = Exporter {
            offered: Offered(waiting),
            sender: Sender::new(store.clone(), client, retries, metrics.clone()),
            metrics: metrics.clone(),
        };
        Ok((Self(Some(outlet)), Some(exporter)))
    }

    /// Whether committed reports are wanted at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn offer(&self, committed: Vec<Range>) {
        let samples = count(&committed);
        let Some(outlet) = self.0.as_ref().filter(|_| samples > 0) else {
            return;
        };
        let bytes: usize = committed.iter().map(weight).sum();
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = outlet.room.clone().try_acquire_many_owned(permits);
        let taken = room.is_ok_and(|room| outlet.offers.try_send((committed, room)).is_ok());
        if !taken {
            outlet.metrics.dropped(samples);
        }
    }
}

/// The part that sends what was offered.
pub struct Exporter {
    offered: Offered,
    sender: Sender,
    metrics: ExportMetrics,
}

/// What consumers have offered.
struct Offered(mpsc::Receiver<Offer>);

impl Exporter {
    /// Sends until `stop`, and then what is left, for a short time. With JetStream the samples wait in a stream in
    /// between.
    pub async fn run(self, queue: Queue, stop: CancellationToken) -> anyhow::Result<()> {
        match queue {
            Queue::InProcess(_) => self.run_directly(stop).await,
            Queue::JetStream(queue) => {
                let backlog = queue.backlog();
                durable::open(&backlog, &stop).await;
                let taking =
                    durable::take(backlog.clone(), self.offered, self.metrics.clone(), &stop);
                let sending = durable::send(backlog, self.sender, self.metrics, &stop);
                tokio::join!(taking, sending);
            }
        }
        Ok(())
    }

    async fn run_directly(mut self, stop: CancellationToken) {
        while let Some(Some((ranges, _room))) = stop.run_until_cancelled(self.offered.next()).await
        {
            self.export(ranges, &stop).await;
        }
        let rest = async {
            while let Some((ranges, _room)) = self.offered.left() {
                self.export(ranges, &stop).await;
            }
        };
        drop(timeout(LAST_REQUESTS, rest).await);
    }

    async fn export(&mut self, ranges: Vec<Range>, stop: &CancellationToken) {
        let left = self.sender.export(ranges, stop).await;
        self.metrics.dropped(left);
    }
}

impl Offered {
    async fn next(&mut self) -> Option<Offer> {
        let first = self.0.recv().await?;
        Some(self.gather(first))
    }

    fn left(&mut self) -> Option<Offer> {
        let first = self.0.try_recv().ok()?;
        Some(self.gather(first))
    }

    /// An offer, and those that wait behind it, up to a full request: a receiver far away gets few and full requests.
    fn gather(&mut self, (mut ranges, mut room): Offer) -> Offer {
        let mut samples = count(&ranges);
        while samples < REQUEST_SAMPLES
            && let Ok((more, its_room)) = self.0.try_recv()
        {
            samples += count(&more);
            ranges.extend(more);
            room.merge(its_room);
        }
        (ranges, room)
    }
}

fn count(ranges: &[Range]) -> usize {
    ranges.iter().map(|range| range.samples.len()).sum()
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use svc_store::{AgentId, HostId, SampleRow};
    use uuid::Uuid;

    use super::*;

    /// A sample without anything optional.
    pub(super) fn plain() -> SampleRow {
        SampleRow {
            seq: 1,
            ..SampleRow::default()
        }
    }

    fn range(samples: usize) -> Range {
        Range {
            agent_id: AgentId(Uuid::nil()),
            host_id: HostId(Uuid::nil()),
            first_seq: 1,
            last_seq: 1,
            samples: vec![plain(); samples],
            gaps: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_at_once_and_room_returns() {
        let (offers, mut waiting) = mpsc::channel(8);
        let outlet = Outlet {
            offers,
            room: Arc::new(Semaphore::new(weight(&range(5)))),
            metrics: ExportMetrics::default(),
        };
        let export = Export(Some(outlet));
        export.offer(vec![range(0)]);
        export.offer(vec![range(1), range(2)]);
        export.offer(vec![range(4)]);
        let taken = waiting.try_recv().map(|(ranges, _room)| ranges.len());
        assert_eq!(taken, Ok(2));
        assert!(
            waiting.try_recv().is_err(),
            "there was no room for four more"
        );
        export.offer(vec![range(5)]);
        assert!(waiting.try_recv().is_ok(), "the room has returned");
    }
}
