//! Sessions of signed-in people. A session is found by the hash of its cookie, ends at a fixed time,
//! and ends earlier without requests.

use std::{net::IpAddr, time::Duration};

use super::{
    events::{By, event},
    people::{Role, UserId},
};
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

record! {
    /// A session as its person sees it.
    #[derive(Debug, Clone)]
    pub struct OpenSession {
        pub id: Uuid,
        /// Where the person signed in from.
        pub address: Option<IpAddr>,
        pub created_at: Timestamp,
        pub seen_at: Timestamp,
        /// Whether it is the one that asks.
        pub this: bool,
    }
}

impl Store {
    /// Opens a session, and removes those that have ended.
    pub async fn console_session_open(
        &self,
        hash: &[u8; 32],
        user: UserId,
        life: Duration,
        by: By<'_>,
    ) -> Result<()> {
        let sql = "-- console_session_open
            WITH ended AS (DELETE FROM console.sessions WHERE expires_at < now()),
            seen AS (UPDATE console.users SET signed_in_at = now() WHERE id = $2)
            INSERT INTO console.sessions (hash, user_id, expires_at, address)
            VALUES ($1, $2, now() + make_interval(secs => $3), $4)";
        let params = params![hash.as_slice(), user.0, life.as_secs_f64(), by.address];
        self.run("console_session_open", Auth, async |tx| {
            tx.execute(sql, &params).await?;
            event(&tx, by, EventKind::SignIn, by.actor, "").await
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

    /// Signs the session's person out.
    pub async fn console_session_close(&self, hash: &[u8; 32], by: By<'_>) -> Result<()> {
        let sql = "-- console_session_close
            DELETE FROM console.sessions s USING console.users u
             WHERE s.hash = $1 AND u.id = s.user_id RETURNING u.name";
        let params = params![hash.as_slice()];
        self.run("console_session_close", Auth, async |tx| {
            let Some(row) = tx.query_opt(sql, &params).await? else {
                return Ok(());
            };
            event(&tx, by, EventKind::SignOut, row.try_get("name")?, "").await
        })
        .await
    }

    /// The sessions of a person that have not ended, the newest first. `this` is the hash of the one that asks.
    pub async fn console_sessions(
        &self,
        user: UserId,
        this: &[u8; 32],
        idle: Duration,
    ) -> Result<Vec<OpenSession>> {
        let sql = "-- console_sessions
            SELECT id, address, created_at, seen_at, hash = $2 AS this FROM console.sessions
             WHERE user_id = $1 AND expires_at > now() AND seen_at > now() - make_interval(secs => $3)
             ORDER BY created_at DESC LIMIT 100";
        let params = params![user.0, this.as_slice(), idle.as_secs_f64()];
        self.read_all("console_sessions", Auth, sql, &params).await
    }

    /// Ends one session of a person or, without `id`, all but `this`.
    pub async fn console_sessions_end(
        &self,
        user: UserId,
        id: Option<Uuid>,
        this: &[u8; 32],
        by: By<'_>,
    ) -> Result<u64> {
        let sql = "-- console_sessions_end
            DELETE FROM console.sessions WHERE user_id = $1 AND hash <> $3 AND ($2::uuid IS NULL OR id = $2)";
        let params = params![user.0, id, this.as_slice()];
        self.run("console_sessions_end", Auth, async |tx| {
            let ended = tx.execute(sql, &params).await?;
            if ended > 0 {
                let detail = format!("{ended} ended");
                event(&tx, by, EventKind::SessionsEnded, by.actor, &detail).await?;
            }
            Ok(ended)
        })
        .await
    }
}
