//! Export of committed samples as metrics, over OTLP.
//!
//! The consumer offers the reports of a batch after their commit and after their acknowledgements. Offering never waits:
//! there is room for 16 MiB of samples, and what does not fit is dropped and counted. So a receiver that is slow, away or
//! wrong costs some memory and its own copy of the samples, and delays nobody. PostgreSQL has all of them.
//!
//! A report that the queue delivers again is exported again, with the same times and values.

mod client;
mod mapping;
pub mod otlp;
mod protocol;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use prost::Message;
use svc_store::{HostId, HostIdentity, Range, SampleRow, Store};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{error_chain::chain, queue::weight, telemetry::ExportMetrics};
use client::Client;
use otlp::ExportRequest;
pub use protocol::{Protocol, Receiver};

/// How many bytes of samples may wait: about 30,000 samples with two disks.
const ROOM: usize = 16 << 20;
/// How many batches may wait. A batch of one sample without disks has about 300 bytes, so the room is full first.
const OFFERS: usize = 1 << 16;
/// Samples in one request: about 1 MiB.
const REQUEST_SAMPLES: usize = 500;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses before a request is repeated that may succeed later.
const RETRIES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];
/// How long the rest may take at a stop.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
/// How long the name and the labels of a host are used.
const IDENTITY_LIFE: Duration = Duration::from_mins(5);
/// The pause between log lines about a receiver that does not take samples.
const REPEAT: Duration = Duration::from_mins(1);

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
        let exporter = Exporter {
            waiting,
            store: store.clone(),
            client: Client::new(receiver)?,
            metrics: metrics.clone(),
            identities: BTreeMap::new(),
            reported: None,
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
    waiting: mpsc::Receiver<Offer>,
    store: Store,
    client: Client,
    metrics: ExportMetrics,
    /// What is known about hosts. Emptied every few minutes, so it is bounded by the hosts that report meanwhile.
    identities: BTreeMap<HostId, HostIdentity>,
    reported: Option<Instant>,
}

impl Exporter {
    /// Sends until `stop`, and then what is left, for a short time.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut forget_at = Instant::now() + IDENTITY_LIFE;
        while let Some(Some(first)) = stop.run_until_cancelled(self.waiting.recv()).await {
            if Instant::now() >= forget_at {
                self.identities.clear();
                forget_at = Instant::now() + IDENTITY_LIFE;
            }
            let (ranges, _room) = self.gather(first);
            self.export(ranges, &stop).await;
        }
        let rest = async {
            while let Ok(first) = self.waiting.try_recv() {
                let (ranges, _room) = self.gather(first);
                self.export(ranges, &stop).await;
            }
        };
        drop(timeout(LAST_REQUESTS, rest).await);
        Ok(())
    }

    /// An offer, and those that wait behind it, up to a full request: a receiver far away gets few and full requests.
    fn gather(&mut self, (mut ranges, mut room): Offer) -> Offer {
        let mut samples = count(&ranges);
        while samples < REQUEST_SAMPLES
            && let Ok((more, its_room)) = self.waiting.try_recv()
        {
            samples += count(&more);
            ranges.extend(more);
            room.merge(its_room);
        }
        (ranges, room)
    }

    async fn export(&mut self, ranges: Vec<Range>, stop: &CancellationToken) {
        let mut hosts: BTreeMap<HostId, Vec<SampleRow>> = BTreeMap::new();
        for range in ranges {
            hosts
                .entry(range.host_id)
                .or_default()
                .extend(range.samples);
        }
        self.look_up(hosts.keys().copied()).await;
        let (mut request, mut samples) = (ExportRequest::default(), 0);
        for (id, rows) in hosts {
            for rows in rows.chunks(REQUEST_SAMPLES) {
                let resource = mapping::resource(id, self.identities.get(&id));
                let metrics = mapping::resource_metrics(resource, rows);
                request.resource_metrics.push(metrics);
                samples += rows.len();
                if samples >= REQUEST_SAMPLES {
                    self.send(&request, samples, stop).await;
                    (request, samples) = (ExportRequest::default(), 0);
                }
            }
        }
        if samples > 0 {
            self.send(&request, samples, stop).await;
        }
    }

    /// Hosts that cannot be looked up now are exported by their id alone.
    async fn look_up(&mut self, hosts: impl Iterator<Item = HostId>) {
        let unknown: Vec<HostId> = hosts
            .filter(|id| !self.identities.contains_key(id))
            .collect();
        if unknown.is_empty() {
            return;
        }
        match self.store.hosts_identify(&unknown).await {
            Ok(found) => {
                let found = found.into_iter().map(|host| (host.id, host));
                self.identities.extend(found);
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::debug!(reason, "hosts could not be looked up for the export");
            }
        }
    }

    /// Repeats a request that may succeed later, unless the process stops.
    async fn send(&mut self, request: &ExportRequest, samples: usize, stop: &CancellationToken) {
        let body = bytes::Bytes::from(request.encode_to_vec());
        let mut pauses = RETRIES.iter();
        loop {
            let (passing, reason) =
                match timeout(REQUEST_TIMEOUT, self.client.post(body.clone())).await {
                    Ok(Ok(None)) => return self.metrics.sent(samples),
                    Ok(Ok(Some(rejected))) => {
                        self.report(&rejected);
                        return self.metrics.sent(samples);
                    }
                    Ok(Err(error)) => (error.is_passing(), chain(&error)),
                    Err(_) => (true, "the receiver does not answer in time".into()),
                };
            self.report(&reason);
            match pauses.next().filter(|_| passing && !stop.is_cancelled()) {
                Some(pause) => drop(stop.run_until_cancelled(sleep(*pause)).await),
                None if passing => return self.metrics.dropped(samples),
                None => return self.metrics.refused(samples),
            }
        }
    }

    fn report(&mut self, reason: &str) {
        if self.reported.is_none_or(|last| last.elapsed() > REPEAT) {
            self.reported = Some(Instant::now());
            tracing::warn!(reason, "samples could not be exported");
        }
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
    use svc_store::AgentId;
    use uuid::Uuid;

    use super::*;

    fn range(samples: usize) -> Range {
        let sample = SampleRow {
            seq: 1,
            sampled_at: jiff::Timestamp::UNIX_EPOCH,
            cpu_percent: 0.0,
            load: [0.0; 3],
            memory_used_bytes: 0,
            memory_total_bytes: 0,
            swap_used_bytes: 0,
            swap_total_bytes: 0,
            uptime_seconds: 0,
            process_count: 0,
            network_rx_bytes: 0,
            network_tx_bytes: 0,
            disks: Vec::new(),
            optional: None,
        };
        Range {
            agent_id: AgentId(Uuid::nil()),
            host_id: HostId(Uuid::nil()),
            first_seq: 1,
            last_seq: 1,
            samples: vec![sample; samples],
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
