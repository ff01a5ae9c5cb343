//! One-time links, by which people come in.

use std::time::Duration;

use super::{
    events::{By, event},
    people::{LoginRecord, SET_PASSWORD},
};
use crate::{prelude::*, values::event_kind::EventKind};

text_enum! {
    /// What a one-time link does.
    pub enum LinkKind {
        SetPassword = "password",
        SignIn = "sign-in",
    }
    else SetPassword
}

impl Store {
    /// Creates a one-time link for a person in the place of an older one, and returns whether there is such a person.
    pub async fn console_link_create(
        &self,
        name: &str,
        kind: LinkKind,
        hash: &[u8; 32],
        life: Duration,
        by: impl Into<By<'_>>,
    ) -> Result<bool> {
        let sql = "-- console_link_create
            INSERT INTO console.links (user_id, hash, kind, expires_at)
            SELECT id, $2, $3, now() + make_interval(secs => $4)
              FROM console.users WHERE name = $1 AND disabled_at IS NULL
            ON CONFLICT (user_id) DO UPDATE SET hash = $2, kind = $3, expires_at = excluded.expires_at";
        let (by, kind, seconds) = (by.into(), kind.as_str(), life.as_secs_f64());
        let params = params![name, hash.as_slice(), kind, seconds];
        self.run("console_link_create", Auth, async |tx| {
            let created = tx.execute(sql, &params).await? == 1;
            if created {
                event(&tx, by, EventKind::LinkCreated, name, kind).await?;
            }
            Ok(created)
        })
        .await
    }

    /// The person and the kind of a link that is still good.
    pub async fn console_link(&self, hash: &[u8; 32]) -> Result<Option<(LoginRecord, LinkKind)>> {
        let sql = "-- console_link
            SELECT u.id, u.name, u.role, u.password_hash, l.kind
              FROM console.links l JOIN console.users u ON u.id = l.user_id
             WHERE l.hash = $1 AND l.expires_at > now() AND u.disabled_at IS NULL";
        let params = params![hash.as_slice()];
        let rows = self.read("console_link", Auth, sql, &params);
        let Some(row) = rows.await?.into_iter().next() else {
            return Ok(None);
        };
        Ok(Some((LoginRecord::from_row(&row)?, row.try_get("kind")?)))
    }

    /// Uses a link up, and sets the person's password if one is given. Of several concurrent calls one gets `true`: the deletion
    /// locks the link's row.
    pub async fn console_link_redeem(
        &self,
        hash: &[u8; 32],
        password_hash: Option<&str>,
        by: By<'_>,
    ) -> Result<bool> {
        let take = "-- console_link_redeem
            DELETE FROM console.links WHERE hash = $1 AND expires_at > now() RETURNING user_id";
        let params = params![hash.as_slice()];
        self.run("console_link_redeem", Auth, async |tx| {
            let Some(row) = tx.query_opt(take, &params).await? else {
                return Ok(false);
            };
            event(&tx, by, EventKind::LinkUsed, by.actor, "").await?;
            let user: Uuid = row.try_get("user_id")?;
            if let Some(password) = password_hash {
                let params = params![user, password, None::<&[u8]>];
                tx.execute(SET_PASSWORD, &params).await?;
                event(&tx, by, EventKind::PasswordSet, by.actor, "by a link").await?;
            }
            Ok(true)
        })
        .await
    }
}
