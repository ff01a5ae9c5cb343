//! The inbox of one session: what the rest of the instance has for its stream, and what the stream tells
//! the instance about itself.
//!
//! The inbox holds at most one message of each kind, so nothing piles up for a client that reads slowly.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use svc_pipeline::queue::Ticket;
use svc_store::CellRecord;
use svc_store::TrustList;
use svc_store::WantedSettings;
use tokio::{sync::Notify, time::Instant};

use super::{EndReason, StoredKey};
use crate::{signing::Jwt, sync::lock};

/// Two reports may be in flight, and together hold at most this many samples.
const MAX_REFUSED: usize = 1000;

/// The client is not being read. As a time it is later than any that will come, so it never counts as silent.
const NOT_READING: u64 = u64::MAX;

/// A release as it is offered.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    pub manifest: Vec<u8>,
    pub signature: Vec<u8>,
}

/// A report in the queue whose commit is awaited.
#[derive(Clone, Copy, Debug)]
pub struct PendingReport {
    pub last_seq: i64,
    pub ticket: Ticket,
    pub since: Instant,
}

#[derive(Debug, Default)]
pub struct Inbox {
    /// When the last message of the client arrived, in milliseconds of the table's clock; or `NOT_READING`.
    last_message: AtomicU64,
    /// When the last message after Hello arrived, in milliseconds of the database's clock; 0 if none did. The
    /// table's clock does not serve: it stands still while the process does, and would make a message look
    /// younger than it is.
    heard: AtomicI64,
    /// Whether its agent says how far its updates are. Others are offered none.
    takes_offers: AtomicBool,
    /// Whether its agent was asked for a new key. Once is enough.
    key_asked: AtomicBool,
    /// Whether its agent says which settings it runs. Others are sent none.
    takes_settings: AtomicBool,
    /// How often its agent may report at the least, in milliseconds, if it differs from the others; or 0.
    interval: AtomicU64,
    /// What the hash of the settings that were sent last begins with; 0 before the first.
    settings_sent: AtomicU64,
    /// Whether its agent says what it trusts. Others are told of no trust anchors.
    takes_trust: AtomicBool,
    /// The version of the list of trust anchors that it was told of last.
    trust_told: AtomicI64,
    /// Whether its agent was asked to move to another cell: once a stream.
    asked_to_move: AtomicBool,
    mail: Mutex<Mail>,
    oldest_pending: Mutex<Option<PendingReport>>,
    wake: Notify,
}

#[derive(Debug, Default)]
pub struct Mail {
    pub end: Option<EndReason>,
    pub credential: Option<Jwt>,
    pub drain: Option<Duration>,
    pub offer: Option<Arc<Offer>>,
    pub change_key: bool,
    pub key_stored: Option<Box<StoredKey>>,
    pub settings: Option<Arc<WantedSettings>>,
    pub trust: Option<Arc<TrustList>>,
    pub move_to: Option<Arc<CellRecord>>,
    /// Sequence numbers of samples that the database refuses for good.
    pub refused: Vec<i64>,
    /// The highest committed sequence number; 0 if nothing was committed since the session was opened.
    pub acked_seq: i64,
}

impl Inbox {
    pub fn last_message_at(&self) -> u64 {
        self.last_message.load(Ordering::Relaxed)
    }

    /// The client has sent a message.
    pub fn message_arrived(&self, now: u64) {
        self.last_message.store(now, Ordering::Relaxed);
    }

    /// The client has sent a message at this time of the database's clock.
    pub fn heard(&self, at: Timestamp) {
        self.heard.store(at.as_millisecond(), Ordering::Relaxed);
    }

    pub fn heard_at(&self) -> Option<Timestamp> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| Timestamp::from_millisecond(heard).ok())?
    }

    /// Notes whether the stream reads from its client. While it does not, because of backpressure, the
    /// client's silence does not count; its time starts again when the stream reads again.
    pub fn set_reading(&self, reading: bool, now: u64) {
        if !reading {
            self.message_arrived(NOT_READING);
        } else if self.last_message_at() == NOT_READING {
            self.message_arrived(now);
        }
    }

    /// Ends the session. The first reason stands.
    pub fn end(&self, reason: EndReason) {
        self.post(|mail| {
            mail.end.get_or_insert(reason);
        });
    }

    pub fn credential(&self, jwt: Jwt) {
        self.post(|mail| mail.credential = Some(jwt));
    }

    pub fn drain(&self, slot: Duration) {
        self.post(|mail| mail.drain = Some(slot));
    }

    pub fn offer(&self, offer: Arc<Offer>) {
        self.post(|mail| mail.offer = Some(offer));
    }

    pub fn ask_for_key(&self) {
        if !self.key_asked.swap(true, Ordering::Relaxed) {
            self.post(|mail| mail.change_key = true);
        }
    }

    pub fn key_stored(&self, stored: StoredKey) {
        self.post(|mail| mail.key_stored = Some(Box::new(stored)));
    }

    /// Returns whether the agent was not asked before.
    pub fn move_to(&self, cell: &Arc<CellRecord>) -> bool {
        let is_new = !self.asked_to_move.swap(true, Ordering::Relaxed);
        if is_new {
            self.post(|mail| mail.move_to = Some(cell.clone()));
        }
        is_new
    }

    pub fn take_offers(&self) {
        self.takes_offers.store(true, Ordering::Relaxed);
    }

    pub fn takes_offers(&self) -> bool {
        self.takes_offers.load(Ordering::Relaxed)
    }

    /// Posts settings, unless the same were posted last. Returns whether it did.
    pub fn settings(&self, wanted: &Arc<WantedSettings>) -> bool {
        let start = wanted.hash.first_chunk().copied().unwrap_or_default();
        let (start, wanted) = (u64::from_le_bytes(start), wanted.clone());
        let new = self.settings_sent.swap(start, Ordering::Relaxed) != start;
        if new {
            self.post(|mail| mail.settings = Some(wanted));
        }
        new
    }

    pub fn take_settings(&self) {
        self.takes_settings.store(true, Ordering::Relaxed);
    }

    pub fn takes_settings(&self) -> bool {
        self.takes_settings.load(Ordering::Relaxed)
    }

    pub fn set_interval(&self, interval: Duration) {
        let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        self.interval.store(millis, Ordering::Relaxed);
    }

    /// How often its agent may report at the least, if it is known to differ from the others.
    pub fn interval(&self) -> Option<Duration> {
        let millis = self.interval.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    pub fn take_trust(&self) {
        self.takes_trust.store(true, Ordering::Relaxed);
    }

    pub fn takes_trust(&self) -> bool {
        self.takes_trust.load(Ordering::Relaxed)
    }

    /// Each version once a stream: an agent that does not take an anchor is not told again and again.
    pub fn announce(&self, list: &Arc<TrustList>) {
        let is_news = || self.trust_told.fetch_max(list.version, Ordering::Relaxed) < list.version;
        if self.takes_trust() && is_news() {
            self.post(|mail| mail.trust = Some(list.clone()));
        }
    }

    /// Numbers beyond what two reports can hold are not about this session's reports and are dropped.
    pub fn refused(&self, seqs: &[i64]) {
        self.post(|mail| {
            let room = MAX_REFUSED.saturating_sub(mail.refused.len());
            mail.refused.extend(seqs.iter().take(room));
        });
    }

    pub fn acked(&self, seq: i64) {
        self.post(|mail| mail.acked_seq = mail.acked_seq.max(seq));
    }

    /// Lets the stream retry what it could not do before.
    pub fn nudge(&self) {
        self.wake.notify_one();
    }

    pub async fn mail_arrived(&self) {
        self.wake.notified().await;
    }

    /// Takes everything out except the end and the watermark, which stay true.
    pub fn take(&self) -> Mail {
        let mut mail = lock(&self.mail);
        Mail {
            end: mail.end,
            credential: mail.credential.take(),
            drain: mail.drain.take(),
            offer: mail.offer.take(),
            change_key: std::mem::take(&mut mail.change_key),
            key_stored: mail.key_stored.take(),
            settings: mail.settings.take(),
            trust: mail.trust.take(),
            move_to: mail.move_to.take(),
            refused: std::mem::take(&mut mail.refused),
            acked_seq: mail.acked_seq,
        }
    }

    /// Sets the report that has waited longest for its commit.
    pub fn set_oldest_pending(&self, oldest: Option<PendingReport>) {
        *lock(&self.oldest_pending) = oldest;
    }

    pub fn oldest_pending(&self) -> Option<PendingReport> {
        *lock(&self.oldest_pending)
    }

    fn post(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut lock(&self.mail));
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_does_not_count_while_the_client_is_not_read() {
        let inbox = Inbox::default();
        inbox.message_arrived(1_000);
        inbox.set_reading(true, 5_000);
        assert_eq!(inbox.last_message_at(), 1_000, "reading is no message");
        inbox.set_reading(false, 6_000);
        assert_eq!(90_000_u64.saturating_sub(inbox.last_message_at()), 0);
        inbox.set_reading(true, 90_000);
        assert_eq!(inbox.last_message_at(), 90_000, "its time starts again");
    }
}
