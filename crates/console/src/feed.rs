//! What changed in the fleet, read once for all viewers of this process.
//!
//! A notification of a new pending agent wakes the feed; a poll every second finds everything that
//! nothing announces, such as decisions. Counts of the whole fleet are read more rarely. While the
//! database is away the last values stay, marked as stale, and the feed keeps trying.

use std::time::Duration;

use svc_store::{AttentionCounts, DatabaseUrl, FleetCounts, Store, StoreError};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const POLL: Duration = Duration::from_secs(1);
const COUNTS_EVERY: Duration = Duration::from_secs(10);
const ATTENTION_EVERY: Duration = Duration::from_secs(30);
const RECONNECT: Duration = Duration::from_secs(5);
/// Values older than this are called stale, and a read that takes longer is given up.
const STALE_AFTER: Duration = Duration::from_secs(10);
const CHANNEL: &str = "svc_registrations";

/// The newest values.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Grows whenever a registration arrived or the number of pending agents changed.
    pub version: u64,
    pub pending: i64,
    pub counts: FleetCounts,
    pub attention: AttentionCounts,
    /// Whether the values may be out of date because the database does not answer.
    pub stale: bool,
    /// Whether all values have been read at least once.
    pub complete: bool,
}

#[derive(Debug)]
pub struct Feed {
    store: Store,
    listen_url: DatabaseUrl,
    news: watch::Sender<News>,
}

impl Feed {
    pub fn new(store: Store, listen_url: DatabaseUrl) -> Self {
        Self {
            store,
            listen_url,
            news: watch::Sender::default(),
        }
    }

    pub fn watch(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let polling = self.poll();
        let listening = self.listen();
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            never = polling => match never {},
            never = listening => match never {},
        }
    }

    async fn poll(&self) -> std::convert::Infallible {
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_success = Instant::now();
        let (mut counts_due, mut attention_due) = (Instant::now(), Instant::now());
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let read = self.pass(now >= counts_due, now >= attention_due);
            match timeout(STALE_AFTER, read).await {
                Ok(Ok(())) => {
                    last_success = now;
                    if now >= counts_due {
                        counts_due = now + COUNTS_EVERY;
                    }
                    if now >= attention_due {
                        attention_due = now + ATTENTION_EVERY;
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "the feed cannot read"),
                Err(_) => tracing::debug!("the feed gets no answer"),
            }
            self.note_staleness(last_success.elapsed() > STALE_AFTER);
        }
    }

    /// Reads what is due, and publishes it.
    async fn pass(&self, counts: bool, attention: bool) -> Result<(), StoreError> {
        let pending = self.store.console_pending_count().await?;
        let counts = match counts {
            true => Some(self.store.console_counts().await?),
            false => None,
        };
        let attention = match attention {
            true => Some(self.store.console_attention().await?),
            false => None,
        };
        self.news.send_if_modified(|news| {
            let decided = news.pending != pending;
            news.version += u64::from(decided);
            news.pending = pending;
            let changed = decided || counts.is_some() || attention.is_some();
            news.complete |= counts.is_some() && attention.is_some();
            if let Some(counts) = counts {
                news.counts = counts;
            }
            if let Some(attention) = attention {
                news.attention = attention;
            }
            changed
        });
        Ok(())
    }

    fn note_staleness(&self, stale: bool) {
        self.news.send_if_modified(|news| {
            let changed = news.stale != stale;
            news.stale = stale;
            changed
        });
    }

    /// Notifications make new registrations appear at once. Without them the poll is late by a second.
    async fn listen(&self) -> std::convert::Infallible {
        loop {
            if let Err(error) = self.hear().await {
                tracing::debug!(%error, "the feed cannot listen");
            }
            sleep(RECONNECT).await;
        }
    }

    async fn hear(&self) -> Result<(), StoreError> {
        let mut listener = self.store.listen(&self.listen_url, CHANNEL).await?;
        while listener.recv().await?.is_some() {
            self.news.send_modify(|news| news.version += 1);
        }
        Ok(())
    }
}
