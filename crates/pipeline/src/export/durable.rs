//! The export over JetStream: committed samples wait in a stream of their own until the receiver has them.
//!
//! Every process publishes what its consumers offer, and pulls from one durable consumer that all processes share. So a
//! receiver may be away for hours, and processes may end: what the stream still holds is sent later, by whichever process
//! runs. The stream drops its oldest messages when it is full; it never refuses one, and no acknowledgement of an agent
//! depends on it.

use std::time::Duration;

use async_nats::Subject;
use svc_common::error_chain::chain;
use svc_store::Range;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    LAST_REQUESTS, Offered,
    sender::{REQUEST_SAMPLES, Sender},
};
use crate::{metrics::ExportMetrics, queue::Backlog};

/// The pause after NATS did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// The pause after the stream could not be made. The log has a line for each attempt.
const OPEN_RETRY: Duration = Duration::from_secs(30);

/// Makes the stream, or waits until another process has made it.
pub(super) async fn open(backlog: &Backlog, stop: &CancellationToken) {
    while let Some(Err(error)) = stop.run_until_cancelled(backlog.open()).await {
        tracing::warn!(
            reason = chain(&error),
            "samples wait for the export in memory"
        );
        stop.run_until_cancelled(sleep(OPEN_RETRY)).await;
    }
}

/// Publishes what is offered until `stop`, and then what is left, for a short time. What cannot be published is dropped: it has been waited for long enough.
pub(super) async fn take(
    backlog: Backlog,
    mut offered: Offered,
    metrics: ExportMetrics,
    stop: &CancellationToken,
) {
    while let Some(Some((ranges, _room))) = stop.run_until_cancelled(offered.next()).await {
        metrics.dropped(backlog.publish(&ranges).await);
    }
    let rest = async {
        while let Some((ranges, _room)) = offered.left() {
            metrics.dropped(backlog.publish(&ranges).await);
        }
    };
    drop(timeout(LAST_REQUESTS, rest).await);
}

/// Sends what the stream holds.
pub(super) async fn send(
    mut backlog: Backlog,
    mut sender: Sender,
    metrics: ExportMetrics,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        match backlog.pull().await {
            Ok(waiting) => send_all(&backlog, &mut sender, &metrics, waiting, stop).await,
            Err(_) => drop(stop.run_until_cancelled(sleep(RETRY)).await),
        }
    }
}

/// Sends what was pulled together, a request at a time. A message is settled when the receiver has answered for its
/// request. After the first request that is given up, all others go back at once: they are delivered again after a pause,
/// to any process. Those that wait behind a slow request are held.
async fn send_all(
    backlog: &Backlog,
    sender: &mut Sender,
    metrics: &ExportMetrics,
    mut waiting: Vec<(Range, Subject)>,
    stop: &CancellationToken,
) {
    while !waiting.is_empty() {
        let rest = waiting.split_off(request(&waiting));
        let (ranges, receipts): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let left = sender.export(ranges, stop).await;
        let behind: Vec<Subject> = rest.iter().map(|(_, receipt)| receipt.clone()).collect();
        if left > 0 {
            let unsent = rest.iter().map(|(range, _)| range.samples.len());
            metrics.postponed(left + unsent.sum::<usize>());
            backlog.put_back([receipts, behind].concat()).await;
            return;
        }
        backlog.settle(receipts).await;
        backlog.hold(behind).await;
        waiting = rest;
    }
}

/// How many of the messages fill a request.
fn request(waiting: &[(Range, Subject)]) -> usize {
    let mut samples = 0;
    let full = waiting.iter().position(|(range, _)| {
        samples += range.samples.len();
        samples >= REQUEST_SAMPLES
    });
    full.map_or(waiting.len(), |last| last + 1)
}
