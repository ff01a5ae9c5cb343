//! Once a second for all sessions: ends the silent ones, renews JWTs before they expire or when the signing key has
//! changed, and sends agents to other instances when this one has lost the database.

use std::{sync::Arc, time::Duration};

use svc_store::AgentStatus;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{EndReason, Session, SessionTable, drain::ask_to_leave};
use crate::{
    config::Timing,
    enrol::{IssueError, Issuer},
    freshness::Freshness,
    periodic::Periodic,
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
        let limit = u64::try_from(self.timing.silence().as_millis()).unwrap_or(u64::MAX);
        let now = self.sessions.now();
        for session in sessions {
            if now.saturating_sub(session.inbox.last_message_at()) > limit {
                session.inbox.end(EndReason::Silent);
            }
        }
    }

    async fn renew(&self, sessions: &[Session]) {
        let now = jiff::Timestamp::now();
        let due = sessions.iter().filter(|session| session.renew_at <= now);
        for session in due.take(MAX_RENEWALS) {
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

fn not_active(status: Option<AgentStatus>) -> EndReason {
    status.map_or(EndReason::Deleted, EndReason::NotActive)
}
