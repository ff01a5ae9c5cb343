//! The people who may use the console.

use super::events::{By, event};
pub use crate::values::ids::UserId;
use crate::{prelude::*, values::event_kind::EventKind};

text_enum! {
    /// What a person may do; each role may do what the roles before it may. A person whose role is not known may only read.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Role {
        /// Reads.
        Viewer = "viewer",
        /// Decides about agents and hosts.
        Operator = "operator",
        /// Manages enrolment tokens and people.
        Admin = "admin",
    }
    else Viewer
}

record! {
    #[derive(Debug, Clone)]
    pub struct UserRecord {
        pub id: UserId,
        pub name: String,
        pub role: Role,
        pub has_password: bool,
        pub created_at: Timestamp,
        pub created_by: String,
        pub disabled_at: Option<Timestamp>,
        pub signed_in_at: Option<Timestamp>,
        pub session_count: i64,
    }
}

record! {
    /// What signing in compares.
    #[derive(Debug, Clone)]
    pub struct LoginRecord {
        pub id: UserId,
        pub name: String,
        pub role: Role,
        pub password_hash: Option<String>,
    }
}

impl Store {
    pub async fn console_users(&self) -> Result<Vec<UserRecord>> {
        let sql = "-- console_users
            SELECT id, name, role, password_hash IS NOT NULL AS has_password, created_at, created_by, disabled_at,
                   signed_in_at,
                   (SELECT count(*) FROM console.sessions s WHERE s.user_id = u.id AND s.expires_at > now()) AS session_count
              FROM console.users u ORDER BY name LIMIT 1000";
        self.read_all("console_users", Auth, sql, &[]).await
    }

    pub async fn console_has_users(&self) -> Result<bool> {
        let sql = "-- console_has_users\nSELECT EXISTS (SELECT FROM console.users)";
        let rows = self.read("console_has_users", Auth, sql, &[]);
        let rows = rows.await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get(0)?))
    }

    /// The person of this name, unless disabled.
    pub async fn console_user_login(&self, name: &str) -> Result<Option<LoginRecord>> {
        let sql = "-- console_user_login
            SELECT id, name, role, password_hash FROM console.users WHERE name = $1 AND disabled_at IS NULL";
        let params = params![name];
        self.read_first("console_user_login", Auth, sql, &params)
            .await
    }

    /// Adds a person without a password. Fails with a violated constraint if the name is taken.
    pub async fn console_user_add(
        &self,
        name: &str,
        role: Role,
        by: impl Into<By<'_>>,
    ) -> Result<UserId> {
        let by = by.into();
        let sql = "-- console_user_add
            INSERT INTO console.users (name, role, created_by) VALUES ($1, $2, $3) RETURNING id";
        let role = role.as_str();
        let params = params![name, role, by.actor];
        self.run("console_user_add", Auth, async |tx| {
            let id = tx.query_value(sql, &params).await?;
            event(&tx, by, EventKind::UserAdded, name, role).await?;
            Ok(id)
        })
        .await
    }

    /// Changes a person's role. Open sessions have the new role at their next request.
    pub async fn console_user_role(&self, name: &str, role: Role, by: By<'_>) -> Result<bool> {
        let sql = "-- console_user_role\nUPDATE console.users SET role = $2 WHERE name = $1";
        let role = role.as_str();
        let params = params![name, role];
        self.run("console_user_role", Auth, async |tx| {
            let found = tx.execute(sql, &params).await? == 1;
            if found {
                event(&tx, by, EventKind::RoleChanged, name, role).await?;
            }
            Ok(found)
        })
        .await
    }

    /// Disables or enables a person. Disabling ends the person's sessions and links.
    pub async fn console_user_disable(
        &self,
        name: &str,
        disabled: bool,
        by: impl Into<By<'_>>,
    ) -> Result<bool> {
        let by = by.into();
        let sql = "-- console_user_disable
            WITH changed AS (
                UPDATE console.users SET disabled_at = CASE WHEN $2 THEN now() END WHERE name = $1 RETURNING id),
            sessions AS (DELETE FROM console.sessions s USING changed WHERE s.user_id = changed.id AND $2),
            links AS (DELETE FROM console.links l USING changed WHERE l.user_id = changed.id AND $2)
            SELECT count(*) FROM changed";
        let params = params![name, disabled];
        let kind = match disabled {
            true => EventKind::UserDisabled,
            false => EventKind::UserEnabled,
        };
        self.run("console_user_disable", Auth, async |tx| {
            let changed: i64 = tx.query_value(sql, &params).await?;
            if changed == 1 {
                event(&tx, by, kind, name, "").await?;
            }
            Ok(changed == 1)
        })
        .await
    }

    /// Sets a person's own password. Ends the person's link and, but for `session`, sessions.
    pub async fn console_password_set(
        &self,
        user: UserId,
        password_hash: &str,
        session: &[u8; 32],
        by: By<'_>,
    ) -> Result<()> {
        let params = params![user.0, password_hash, session.as_slice()];
        self.run("console_password_set", Auth, async |tx| {
            tx.execute(SET_PASSWORD, &params).await?;
            event(&tx, by, EventKind::PasswordSet, by.actor, "").await
        })
        .await
    }
}

/// Whoever may have come in with an old password or link is out. `$3` is a session that goes on, or null.
pub(super) const SET_PASSWORD: &str = "-- console_password_set
    WITH links AS (DELETE FROM console.links WHERE user_id = $1),
    ended AS (DELETE FROM console.sessions WHERE user_id = $1 AND hash IS DISTINCT FROM $3)
    UPDATE console.users SET password_hash = $2 WHERE id = $1";
