//! The export over JetStream: committed samples wait in a stream of their own until the receiver has them.
//!
//! Every process publishes what its consumers offer, and pulls from one durable consumer that all processes share. So a
//! receiver may be away for hours, and processes may end: what the stream still holds is sent later, by whichever process
//! runs. The stream drops its oldest messages when it is full; it never refuses one, and no acknowledgement of an agent
//! depends on it.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LAST_REQUESTS, Offered, count, sender::Sender};
use crate::{error_chain::chain, queue::Backlog, telemetry::ExportMetrics};

/// The pause after NATS did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// The pause after the stream could not be made. The log has a line for each attempt.
const OPEN_RETRY: Duration = Duration::from_secs(30);

/// Makes the stream, or waits for somebody who does.
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

/// Sends what the stream holds. A message is settled when the receiver has answered for all that was pulled with it;
/// otherwise it is delivered again, after a pause.
pub(super) async fn send(
    mut backlog: Backlog,
    mut sender: Sender,
    metrics: ExportMetrics,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        let Ok((ranges, receipts)) = backlog.pull().await else {
            stop.run_until_cancelled(sleep(RETRY)).await;
            continue;
        };
        let left = match count(&ranges) {
            0 => 0,
            _ => sender.export(ranges, stop).await,
        };
        match left {
            0 => backlog.settle(receipts).await,
            _ => {
                metrics.postponed(left);
                backlog.put_back(receipts).await;
            }
        }
    }
}
