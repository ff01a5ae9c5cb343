//! Once a second for all sessions: ends the silent ones, renews JWTs before they expire or when the signing key or the clock has
//! changed, and sends agents to other instances when this one has lost the database.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use svc_store::AgentStatus;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{EndReason, Session, SessionTable, drain::ask_to_leave};
use crate::{
    clock::DatabaseClock,
    config::Timing,
    enrol::{IssueError, Issuer},
    freshness::Freshness,
    periodic::Periodic,
    signing::{JWT_LIFETIME, LEEWAY},
};

const TICK: Duration = Duration::from_secs(1);
/// The most by which one tick advances the table's clock. A later tick means that the process stood
/// still, and says nothing about the clients.
const MAX_ADVANCE: Duration = Duration::from_secs(2);
/// JWTs renewed in one tick at most.
const MAX_RENEWALS: usize = 200;

#[derive(Debug)]
pub struct Upkeep {
    pub sessions: Arc<SessionTable>,
    pub issuer: Issuer,
    pub clock: DatabaseClock,
    pub freshness: Arc<Freshness>,
    pub timing: Timing,
}

impl Upkeep {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(TICK, stop);
        let (mut last, mut sent_away) = (Instant::now(), false);
        while periodic.tick().await {
            self.sessions.advance(last.elapsed().min(MAX_ADVANCE));
            last = Instant::now();
            let sessions = self.sessions.all();
            self.end_silent(&sessions);
            if self.freshness.is_fresh() {
                self.sessions.release_acks();
                self.renew(&sessions).await;
            }
            sent_away = self.send_away(sent_away);
        }
        Ok(())
    }

    fn end_silent(&self, sessions: &[Session]) {
        let now = self.sessions.now();
        for session in sessions {
            let silence = self.timing.silence(session.inbox.interval());
            let limit = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
            if now.saturating_sub(session.inbox.last_message_at()) > limit {
                session.inbox.end(EndReason::Silent);
            }
        }
    }

    async fn renew(&self, sessions: &[Session]) {
        let now = self.clock.now();
        let due = |session: &&Session| is_due(session.renew_at, now, self.timing.renew_before);
        for session in sessions.iter().filter(due).take(MAX_RENEWALS) {
            match self.issuer.issue(session.key.agent).await {
                Ok(jwt) => {
                    let renew_at = jwt.expires_at - self.timing.renew_before;
                    self.sessions.renewed(session.key, renew_at);
                    session.inbox.credential(jwt);
                }
                Err(IssueError::NotActive(status)) => session.inbox.end(not_active(status)),
                Err(error) => {
                    tracing::warn!(%error, "a JWT could not be renewed: retrying");
                    return;
                }
            }
        }
    }

    /// Drains all sessions once when the database has been out of reach for too long. Returns whether
    /// that is (still) the case.
    fn send_away(&self, sent_away: bool) -> bool {
        let useless = self.freshness.age() > self.timing.blind_patience;
        if useless && !sent_away {
            tracing::warn!(
                streams = self.sessions.len(),
                "sending agents to other instances: this one cannot reach the database"
            );
            ask_to_leave(&self.sessions);
        }
        useless
    }
}

/// Whether a JWT must be replaced: its time has come, or it is valid for longer than any that is issued now. The latter was
/// issued before the database's clock was set back. To refuse it would lock its agent out; third parties should not have
/// to accept it for that long.
fn is_due(renew_at: Timestamp, now: Timestamp, renew_before: Duration) -> bool {
    let left = renew_at.duration_since(now);
    let longest = JWT_LIFETIME.saturating_sub(renew_before) + LEEWAY;
    !left.is_positive() || left.unsigned_abs() > longest
}

fn not_active(status: Option<AgentStatus>) -> EndReason {
    status.map_or(EndReason::Deleted, EndReason::NotActive)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_jwt_is_replaced_when_its_time_has_come_or_lies_too_far_ahead() {
        let now = Timestamp::constant(1_800_000_000, 0);
        let due = |seconds| {
            let renew_at = now + SignedDuration::from_secs(seconds);
            is_due(renew_at, now, Duration::from_hours(7))
        };
        let longest = 17 * 3600 + 30;
        let expected = [true, true, false, false, true];
        assert_eq!([-1, 0, 1, longest, longest + 1].map(due), expected);
        assert!(is_due(Timestamp::UNIX_EPOCH, now, Duration::ZERO));
    }
}
