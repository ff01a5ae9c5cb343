//! What the instance has to say to one stream: at most one of each kind; and what
//! the stream has waited for longest, for the instance to look after.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use svc_store::{AgentStatus, CloseCause};
use tokio::{sync::Notify, time::Instant};

use crate::{queue::Ticket, signing::Jwt};

/// What a drained agent has beyond its slot to be back.
const RETURN: Duration = Duration::from_secs(30);

/// Why the instance ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    NotActive(AgentStatus),
    Deleted,
    Replaced,
    /// Nothing was heard for longer than an agent may be silent.
    Silent,
    /// This instance stops; come back after this long.
    Drained {
        slot: Duration,
    },
    /// What it sent could not be stored; the agent sends it again.
    Unstored,
}

impl Ending {
    /// What is written about its presence. A replaced stream writes nothing that counts.
    pub fn cause(self) -> CloseCause {
        match self {
            Self::NotActive(_) | Self::Deleted => CloseCause::Refused,
            Self::Replaced | Self::Silent | Self::Unstored => CloseCause::Lost,
            Self::Drained { slot } => drained(slot),
        }
    }
}

/// A drained agent counts as online until its slot, and a while for it to return.
pub(super) fn drained(slot: Duration) -> CloseCause {
    CloseCause::Drained {
        back_in: slot + RETURN,
    }
}

/// What two reports can hold.
const MOST_REFUSED: usize = 1000;

/// Later than any time that will come.
const UNHEARD: u64 = u64::MAX;

/// A report in the queue, whose commit is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    pub last_seq: i64,
    pub ticket: Ticket,
    pub since: Instant,
}

#[derive(Debug, Default)]
pub struct Inbox {
    /// When the client was last heard, in the table's own time; or that it is not read.
    heard: AtomicU64,
    mail: Mutex<Mail>,
    /// The oldest.
    awaited: Mutex<Option<Awaited>>,
    wake: Notify,
}

#[derive(Debug, Default)]
pub struct Mail {
    pub ending: Option<Ending>,
    pub credential: Option<Jwt>,
    pub drain: Option<Duration>,
    /// Samples that the database refuses for good.
    pub refused: Vec<i64>,
    /// The highest number that is committed; 0: none since the stream was opened.
    pub acked_seq: i64,
}

impl Inbox {
    pub fn heard_at(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    pub fn hear(&self, now: u64) {
        self.heard.store(now, Ordering::Relaxed);
    }

    /// Nobody is silent whom we do not read: its time begins when we read again.
    pub fn listen(&self, reading: bool, now: u64) {
        if !reading {
            self.hear(UNHEARD);
        } else if self.heard_at() == UNHEARD {
            self.hear(now);
        }
    }

    /// The first ending stands.
    pub fn end(&self, ending: Ending) {
        self.mail().ending.get_or_insert(ending);
        self.wake.notify_one();
    }

    pub fn credential(&self, jwt: Jwt) {
        self.mail().credential = Some(jwt);
        self.wake.notify_one();
    }

    pub fn drain(&self, back_in: Duration) {
        self.mail().drain = Some(back_in);
        self.wake.notify_one();
    }

    /// A stream has two reports on their way at most: more is not about them.
    pub fn refused(&self, seqs: &[i64]) {
        let mut mail = self.mail();
        let room = MOST_REFUSED.saturating_sub(mail.refused.len());
        mail.refused.extend(seqs.iter().take(room));
        drop(mail);
        self.wake.notify_one();
    }

    pub fn acked(&self, seq: i64) {
        let mut mail = self.mail();
        mail.acked_seq = mail.acked_seq.max(seq);
        drop(mail);
        self.wake.notify_one();
    }

    /// What the stream has waited for longest.
    pub fn awaits(&self, oldest: Option<Awaited>) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = oldest;
    }

    pub fn awaited(&self) -> Option<Awaited> {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the stream look again at what it could not act on before.
    pub fn nudge(&self) {
        self.wake.notify_one();
    }

    pub async fn mail_arrived(&self) {
        self.wake.notified().await;
    }

    /// Takes everything out but the ending and the watermark, which stay true.
    pub fn take(&self) -> Mail {
        let mut mail = self.mail();
        Mail {
            ending: mail.ending,
            credential: mail.credential.take(),
            drain: mail.drain.take(),
            refused: std::mem::take(&mut mail.refused),
            acked_seq: mail.acked_seq,
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_silent_whom_we_do_not_read() {
        let inbox = Inbox::default();
        inbox.hear(1_000);
        inbox.listen(true, 5_000);
        assert_eq!(inbox.heard_at(), 1_000, "reading is not hearing");
        inbox.listen(false, 6_000);
        assert_eq!(90_000_u64.saturating_sub(inbox.heard_at()), 0);
        inbox.listen(true, 90_000);
        assert_eq!(inbox.heard_at(), 90_000, "its time begins anew");
    }
}
