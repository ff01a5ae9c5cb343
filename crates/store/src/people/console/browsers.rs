//! Browsers in which a person has signed in before, found by the hash of their cookie. They have attempts to sign in of
//! their own.

use std::time::Duration;

use super::people::UserId;
use crate::prelude::*;

/// The oldest are forgotten.
const BROWSERS_OF_A_PERSON: i64 = 20;

impl Store {
    /// Whether the person of this name has signed in with this browser.
    pub async fn console_browser_known(&self, hash: &[u8; 32], name: &str) -> Result<bool> {
        let sql = "-- console_browser_known
            SELECT EXISTS (SELECT FROM console.browsers b JOIN console.users u ON u.id = b.user_id
                            WHERE b.hash = $1 AND b.expires_at > now() AND u.name = $2)";
        let params = params![hash.as_slice(), name];
        let rows = self
            .read("console_browser_known", Auth, sql, &params)
            .await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?))
    }

    /// Remembers a browser of a person. It takes the place of the one with the hash `before`.
    pub async fn console_browser_remember(
        &self,
        hash: &[u8; 32],
        before: Option<&[u8; 32]>,
        user: UserId,
        life: Duration,
    ) -> Result<()> {
        let forget = "-- console_browser_remember
            DELETE FROM console.browsers
             WHERE expires_at < now() OR hash = $2
                OR hash IN (SELECT hash FROM console.browsers WHERE user_id = $1
                             ORDER BY expires_at DESC OFFSET $3)";
        let remember = "-- console_browser_remember
            INSERT INTO console.browsers (hash, user_id, expires_at)
            VALUES ($1, $2, now() + make_interval(secs => $3))";
        let before = before.map(<[u8; 32]>::as_slice);
        let room = BROWSERS_OF_A_PERSON - 1;
        self.run("console_browser_remember", Auth, async |tx| {
            tx.execute(forget, &params![user.0, before, room]).await?;
            let params = params![hash.as_slice(), user.0, life.as_secs_f64()];
            tx.execute(remember, &params).await.map(drop)
        })
        .await
    }
}
