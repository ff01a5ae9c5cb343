//! What is looked after once a second for all streams: who has fallen silent, whose
//! JWT is to be renewed, and where to send them when this instance is of no use.

use std::{sync::Arc, time::Duration};

use svc_store::AgentStatus;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Ending, Held, Sessions, slots::slots};
use crate::{
    config::Timing,
    enrol::{IssueError, Issuer},
    watch::Watch,
};

const TICK: Duration = Duration::from_secs(1);
/// A tick that comes later than this says nothing about the clients: their time stood still.
const LATE: Duration = Duration::from_secs(2);
/// JWTs renewed in one tick at most.
const RENEWALS: usize = 200;
/// Over how long agents are sent away from an instance without a database.
const EXODUS: Duration = Duration::from_mins(5);

#[derive(Debug)]
pub struct Upkeep {
    pub sessions: Arc<Sessions>,
    pub issuer: Issuer,
    pub watch: Arc<Watch>,
    pub timing: Timing,
}

impl Upkeep {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut sent_away = false;
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            self.sessions.advance(last.elapsed().min(LATE));
            last = Instant::now();
            let sessions = self.sessions.all();
            self.end_silent(&sessions);
            if self.watch.is_fresh() {
                self.sessions.release();
                self.renew(&sessions).await;
            }
            sent_away = self.send_away(&sessions, sent_away);
        }
        Ok(())
    }

    fn end_silent(&self, sessions: &[Held]) {
        let patience = u64::try_from(self.timing.silence().as_millis()).unwrap_or(u64::MAX);
        let now = self.sessions.now();
        for session in sessions {
            if now.saturating_sub(session.inbox.heard_at()) > patience {
                session.inbox.end(Ending::Silent);
            }
        }
    }

    async fn renew(&self, sessions: &[Held]) {
        let soon = jiff::Timestamp::now() + self.timing.renew_before;
        let due = sessions
            .iter()
            .filter(|session| session.jwt_expires_at <= soon);
        for session in due.take(RENEWALS) {
            match self.issuer.issue(session.agent).await {
                Ok(jwt) => {
                    self.sessions
                        .renewed(session.agent, session.epoch, jwt.expires_at);
                    session.inbox.credential(jwt);
                }
                Err(IssueError::NotActive(status)) => session.inbox.end(not_active(status)),
                Err(error) => {
                    tracing::warn!(%error, "a JWT could not be renewed: trying again");
                    return;
                }
            }
        }
    }

    /// After a minute without a database, agents are sent to look elsewhere, once.
    fn send_away(&self, sessions: &[Held], sent_away: bool) -> bool {
        let useless = self.watch.blind_for() > self.timing.blind_patience;
        if useless && !sent_away {
            tracing::warn!(
                streams = sessions.len(),
                "sending agents away: the database has been out of sight"
            );
            for (session, slot) in sessions.iter().zip(slots(sessions.len(), EXODUS)) {
                session.inbox.drain(slot);
            }
        }
        useless
    }
}

fn not_active(status: Option<AgentStatus>) -> Ending {
    status.map_or(Ending::Deleted, Ending::NotActive)
}

/// Tells every agent when to come back, waits for them to leave, and ends the rest.
pub async fn drain(sessions: &Sessions, time: Duration) {
    let held = sessions.all();
    let told: Vec<(Held, Duration)> = held
        .iter()
        .cloned()
        .zip(slots(held.len(), EXODUS))
        .collect();
    for (session, slot) in &told {
        session.inbox.drain(*slot);
    }
    let deadline = Instant::now() + time;
    while !sessions.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (session, slot) in &told {
        session.inbox.end(Ending::Drained { slot: *slot });
    }
    for latecomer in sessions.all() {
        latecomer.inbox.end(Ending::Drained {
            slot: Duration::ZERO,
        });
    }
}
