//! Sends samples to the receiver, in requests of a bounded size, each repeated a few times.

use std::{collections::BTreeMap, mem, time::Duration};

use bytes::Bytes;
use prost::Message;
use svc_common::error_chain::chain;
use svc_store::{HostId, HostIdentity, Range, SampleRow, Store};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    client::Client,
    mapping,
    otlp::{ExportRequest, Resource, ResourceMetrics},
};
use crate::metrics::ExportMetrics;

/// Samples in one request, if they fit.
pub(super) const REQUEST_SAMPLES: usize = 500;
/// Receivers accept 4 MiB over gRPC. A single sample has less than this, whatever its agent reports.
const REQUEST_BYTES: usize = 2 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the name and the labels of a host are used.
const IDENTITY_LIFE: Duration = Duration::from_mins(5);
/// The pause between log lines about a receiver that does not take samples.
const REPEAT: Duration = Duration::from_mins(1);

pub(super) struct Sender {
    store: Store,
    client: Client,
    retries: [Duration; 3],
    metrics: ExportMetrics,
    /// What is known about hosts. Emptied every few minutes, so it is bounded by the hosts that report meanwhile.
    identities: BTreeMap<HostId, HostIdentity>,
    forget_at: Instant,
    reported: Option<Instant>,
}

impl Sender {
    pub(super) fn new(
        store: Store,
        client: Client,
        retries: [Duration; 3],
        metrics: ExportMetrics,
    ) -> Self {
        Self {
            store,
            client,
            retries,
            metrics,
            identities: BTreeMap::new(),
            forget_at: Instant::now() + IDENTITY_LIFE,
            reported: None,
        }
    }

    /// Returns how many samples the receiver has not answered for: it is away. After the first request that is given up
    /// the others are not tried.
    pub(super) async fn export(&mut self, ranges: Vec<Range>, stop: &CancellationToken) -> usize {
        let mut hosts: BTreeMap<HostId, Vec<SampleRow>> = BTreeMap::new();
        for range in ranges {
            hosts
                .entry(range.host_id)
                .or_default()
                .extend(range.samples);
        }
        self.look_up(hosts.keys().copied()).await;
        let (mut request, mut left) = (Request::default(), 0);
        for (id, rows) in hosts {
            let resource = mapping::resource(id, self.identities.get(&id));
            for piece in cut(&resource, &rows) {
                if !request.has_room_for(&piece) {
                    left += self
                        .send_unless(left > 0, mem::take(&mut request), stop)
                        .await;
                }
                request.add(piece);
            }
        }
        left + self.send_unless(left > 0, request, stop).await
    }

    async fn send_unless(
        &mut self,
        away: bool,
        request: Request,
        stop: &CancellationToken,
    ) -> usize {
        match away || request.samples == 0 {
            true => request.samples,
            false => self.send(request, stop).await,
        }
    }

    /// Hosts that cannot be looked up now are exported by their id alone.
    async fn look_up(&mut self, hosts: impl Iterator<Item = HostId>) {
        if Instant::now() >= self.forget_at {
            self.identities.clear();
            self.forget_at = Instant::now() + IDENTITY_LIFE;
        }
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

    /// Repeats a request that may succeed later, unless the process stops. Returns its samples if the receiver is away.
    async fn send(&mut self, request: Request, stop: &CancellationToken) -> usize {
        let samples = request.samples;
        let body = Bytes::from(request.message.encode_to_vec());
        let mut pauses = self.retries.into_iter();
        loop {
            let (passing, reason) =
                match timeout(REQUEST_TIMEOUT, self.client.post(body.clone())).await {
                    Ok(Ok(rejected)) => {
                        self.metrics.sent(samples);
                        rejected.iter().for_each(|rejected| self.report(rejected));
                        return 0;
                    }
                    Ok(Err(error)) => (error.is_passing(), chain(&error)),
                    Err(_) => (true, "the receiver does not answer in time".into()),
                };
            self.report(&reason);
            match pauses.next().filter(|_| passing && !stop.is_cancelled()) {
                Some(pause) => drop(stop.run_until_cancelled(sleep(pause)).await),
                None if passing => return samples,
                None => {
                    self.metrics.refused(samples);
                    return 0;
                }
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

/// Metrics of one host.
struct Piece {
    metrics: ResourceMetrics,
    samples: usize,
    bytes: usize,
}

#[derive(Default)]
struct Request {
    message: ExportRequest,
    samples: usize,
    bytes: usize,
}

impl Request {
    fn has_room_for(&self, piece: &Piece) -> bool {
        self.samples == 0
            || (self.samples + piece.samples <= REQUEST_SAMPLES
                && self.bytes + piece.bytes <= REQUEST_BYTES)
    }

    fn add(&mut self, piece: Piece) {
        self.message.resource_metrics.push(piece.metrics);
        self.samples += piece.samples;
        self.bytes += piece.bytes;
    }
}

/// Cuts the samples of one host into pieces that fit into a request.
fn cut(resource: &Resource, rows: &[SampleRow]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for rows in rows.chunks(REQUEST_SAMPLES) {
        let metrics = mapping::resource_metrics(resource.clone(), rows);
        let (samples, bytes) = (rows.len(), metrics.encoded_len());
        if bytes <= REQUEST_BYTES || samples == 1 {
            pieces.push(Piece {
                metrics,
                samples,
                bytes,
            });
        } else {
            let (first, second) = rows.split_at(samples / 2);
            pieces.extend(cut(resource, first));
            pieces.extend(cut(resource, second));
        }
    }
    pieces
}

#[cfg(test)]
mod tests;
