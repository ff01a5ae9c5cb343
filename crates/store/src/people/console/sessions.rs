//! Sessions of signed-in people. A session is found by the hash of its cookie, ends at a fixed time,
//! and ends earlier without requests.

use std::time::Duration;

use super::people::{Role, UserId, event};
use crate::{prelude::*, values::event_kind::EventKind};

record! {
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionRecord {
        pub user_id: UserId,
        pub name: String,
        pub role: Role,
        /// Whether the last noted request is more than a minute ago.
        pub stale: bool,
    }
}

impl Store {
    /// Opens a session, and removes those that have ended.
    pub async fn console_session_open(
        &self,
        hash: &[u8; 32],
        user: UserId,
        name: &str,
        life: Duration,
    ) -> Result<()> {
        let sql = "-- console_session_open
            WITH ended AS (DELETE FROM console.sessions WHERE expires_at < now()),
            seen AS (UPDATE console.users SET signed_in_at = now() WHERE id = $2)
            INSERT INTO console.sessions (hash, user_id, expires_at)
            VALUES ($1, $2, now() + make_interval(secs => $3))";
        let params = params![hash.as_slice(), user.0, life.as_secs_f64()];
        self.run("console_session_open", Auth, async |tx| {
            tx.execute(sql, &params).await?;
            event(&tx, name, EventKind::SignedIn, name, "").await
        })
        .await
    }

    /// The session with this hash, if it has not ended and was used within `idle`.
    pub async fn console_session(
        &self,
        hash: &[u8; 32],
        idle: Duration,
    ) -> Result<Option<SessionRecord>> {
        let sql = "-- console_session
            SELECT s.user_id, u.name, u.role, s.seen_at < now() - interval '1 minute' AS stale
              FROM console.sessions s JOIN console.users u ON u.id = s.user_id
             WHERE s.hash = $1 AND s.expires_at > now() AND u.disabled_at IS NULL
               AND s.seen_at > now() - make_interval(secs => $2)";
        let params = params![hash.as_slice(), idle.as_secs_f64()];
        self.read_first("console_session", Auth, sql, &params).await
    }

    /// Notes a request of the session's person.
    pub async fn console_session_touch(&self, hash: &[u8; 32]) -> Result<()> {
        let sql =
            "-- console_session_touch\nUPDATE console.sessions SET seen_at = now() WHERE hash = $1";
        let params = params![hash.as_slice()];
        self.call("console_session_touch", Auth, sql, &params)
            .await
            .map(drop)
    }

    pub async fn console_session_close(&self, hash: &[u8; 32]) -> Result<()> {
        let sql = "-- console_session_close\nDELETE FROM console.sessions WHERE hash = $1";
        let params = params![hash.as_slice()];
        self.call("console_session_close", Auth, sql, &params)
            .await
            .map(drop)
    }
}
