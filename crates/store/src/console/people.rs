//! The people who may use the console, and the one-time links by which they come in.

use std::{error::Error, fmt, time::Duration};

use jiff::Timestamp;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use crate::{
    error::StoreError,
    pool::{Bulkhead, Store},
    record::record,
    tx::Tx,
};

/// The id of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserId(pub Uuid);

/// What a person may do; each role may do what the roles before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Decides about agents and hosts.
    Operator,
    /// Manages enrolment tokens and people.
    Admin,
}

/// What a one-time link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    SetPassword,
    SignIn,
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
    pub async fn console_users(&self) -> Result<Vec<UserRecord>, StoreError> {
        let sql = "-- console_users
            SELECT id, name, role, password_hash IS NOT NULL AS has_password, created_at, created_by, disabled_at,
                   signed_in_at,
                   (SELECT count(*) FROM console.sessions s WHERE s.user_id = u.id AND s.expires_at > now()) AS session_count
              FROM console.users u ORDER BY name LIMIT 1000";
        let rows = self.read("console_users", Bulkhead::Auth, sql, &[]).await?;
        rows.iter().map(UserRecord::from_row).collect()
    }

    pub async fn console_has_users(&self) -> Result<bool, StoreError> {
        let sql = "-- console_has_users\nSELECT EXISTS (SELECT FROM console.users)";
        let rows = self.read("console_has_users", Bulkhead::Auth, sql, &[]);
        first(rows.await?.first(), |row| Ok(row.try_get(0)?)).map(Option::unwrap_or_default)
    }

    /// The person of this name, unless disabled.
    pub async fn console_user_login(&self, name: &str) -> Result<Option<LoginRecord>, StoreError> {
        let sql = "-- console_user_login
            SELECT id, name, role, password_hash FROM console.users WHERE name = $1 AND disabled_at IS NULL";
        let params = [(&name as _, Type::TEXT)];
        let rows = self.read("console_user_login", Bulkhead::Auth, sql, &params);
        first(rows.await?.first(), LoginRecord::from_row)
    }

    /// Adds a person without a password. Fails with a violated constraint if the name is taken.
    pub async fn console_user_add(
        &self,
        name: &str,
        role: Role,
        actor: &str,
    ) -> Result<UserId, StoreError> {
        let sql = "-- console_user_add
            INSERT INTO console.users (name, role, created_by) VALUES ($1, $2, $3) RETURNING id";
        let role = role.as_str();
        let params = [
            (&name as _, Type::TEXT),
            (&role as _, Type::TEXT),
            (&actor as _, Type::TEXT),
        ];
        self.run("console_user_add", Bulkhead::Auth, async |tx| {
            let id = tx.query_one(sql, &params).await?.try_get("id")?;
            event(&tx, actor, "user added", name, role).await?;
            Ok(id)
        })
        .await
    }

    /// Changes a person's role. Open sessions have the new role at their next request.
    pub async fn console_user_role(
        &self,
        name: &str,
        role: Role,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let sql = "-- console_user_role\nUPDATE console.users SET role = $2 WHERE name = $1";
        let role = role.as_str();
        let params = [(&name as _, Type::TEXT), (&role as _, Type::TEXT)];
        self.run("console_user_role", Bulkhead::Auth, async |tx| {
            let found = tx.execute(sql, &params).await? == 1;
            if found {
                event(&tx, actor, "role changed", name, role).await?;
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
        actor: &str,
    ) -> Result<bool, StoreError> {
        let sql = "-- console_user_disable
            WITH changed AS (
                UPDATE console.users SET disabled_at = CASE WHEN $2 THEN now() END WHERE name = $1 RETURNING id),
            sessions AS (DELETE FROM console.sessions s USING changed WHERE s.user_id = changed.id AND $2),
            links AS (DELETE FROM console.links l USING changed WHERE l.user_id = changed.id AND $2)
            SELECT count(*) FROM changed";
        let params = [(&name as _, Type::TEXT), (&disabled as _, Type::BOOL)];
        let kind = match disabled {
            true => "user disabled",
            false => "user enabled",
        };
        self.run("console_user_disable", Bulkhead::Auth, async |tx| {
            let changed: i64 = tx.query_one(sql, &params).await?.try_get(0)?;
            if changed == 1 {
                event(&tx, actor, kind, name, "").await?;
            }
            Ok(changed == 1)
        })
        .await
    }

    /// Creates a one-time link for a person, and returns whether there is such a person.
    pub async fn console_link_create(
        &self,
        name: &str,
        kind: LinkKind,
        hash: &[u8; 32],
        life: Duration,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let sql = "-- console_link_create
            WITH expired AS (DELETE FROM console.links WHERE expires_at < now())
            INSERT INTO console.links (hash, user_id, kind, expires_at)
            SELECT $2, id, $3, now() + make_interval(secs => $4)
              FROM console.users WHERE name = $1 AND disabled_at IS NULL";
        let (kind, seconds) = (kind.as_str(), life.as_secs_f64());
        let params = [
            (&name as _, Type::TEXT),
            (&hash.as_slice() as _, Type::BYTEA),
            (&kind as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
        ];
        self.run("console_link_create", Bulkhead::Auth, async |tx| {
            let created = tx.execute(sql, &params).await? == 1;
            if created {
                event(&tx, actor, "link created", name, kind).await?;
            }
            Ok(created)
        })
        .await
    }

    /// The person and the kind of a link that is still good.
    pub async fn console_link(
        &self,
        hash: &[u8; 32],
    ) -> Result<Option<(LoginRecord, LinkKind)>, StoreError> {
        let sql = "-- console_link
            SELECT u.id, u.name, u.role, u.password_hash, l.kind = 'sign-in' AS signs_in
              FROM console.links l JOIN console.users u ON u.id = l.user_id
             WHERE l.hash = $1 AND l.expires_at > now() AND u.disabled_at IS NULL";
        let params = [(&hash.as_slice() as _, Type::BYTEA)];
        let rows = self.read("console_link", Bulkhead::Auth, sql, &params);
        first(rows.await?.first(), |row| {
            let kind = match row.try_get("signs_in")? {
                true => LinkKind::SignIn,
                false => LinkKind::SetPassword,
            };
            Ok((LoginRecord::from_row(row)?, kind))
        })
    }

    /// Uses a link up, and sets the person's password if one is given. Of several concurrent calls
    /// one gets `true`: the deletion locks the link's row. A new password ends the person's sessions.
    pub async fn console_link_redeem(
        &self,
        hash: &[u8; 32],
        password_hash: Option<&str>,
    ) -> Result<bool, StoreError> {
        let take = "-- console_link_redeem
            DELETE FROM console.links WHERE hash = $1 AND expires_at > now() RETURNING user_id";
        let set = "-- console_link_redeem
            WITH ended AS (DELETE FROM console.sessions WHERE user_id = $1)
            UPDATE console.users SET password_hash = $2 WHERE id = $1";
        let params = [(&hash.as_slice() as _, Type::BYTEA)];
        self.run("console_link_redeem", Bulkhead::Auth, async |tx| {
            let Some(row) = tx.query_opt(take, &params).await? else {
                return Ok(false);
            };
            let user: Uuid = row.try_get("user_id")?;
            if let Some(password) = password_hash {
                let params = [(&user as _, Type::UUID), (&password as _, Type::TEXT)];
                tx.execute(set, &params).await?;
            }
            Ok(true)
        })
        .await
    }

    /// Records what a person did.
    pub async fn console_event(
        &self,
        actor: &str,
        kind: &str,
        subject: &str,
        detail: &str,
    ) -> Result<(), StoreError> {
        self.run("console_event", Bulkhead::Auth, async |tx| {
            event(&tx, actor, kind, subject, detail).await
        })
        .await
    }
}

pub(super) async fn event(
    tx: &Tx,
    actor: &str,
    kind: &str,
    subject: &str,
    detail: &str,
) -> Result<(), StoreError> {
    let sql = "-- console_event
        INSERT INTO console.events (actor, kind, subject, detail)
        VALUES (left($1, 255), $2, left($3, 255), left($4, 1000))";
    let params = [
        (&actor as _, Type::TEXT),
        (&kind as _, Type::TEXT),
        (&subject as _, Type::TEXT),
        (&detail as _, Type::TEXT),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub(super) fn first<R, T>(
    row: Option<R>,
    read: impl FnOnce(R) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    row.map(read).transpose()
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

impl LinkKind {
    fn as_str(self) -> &'static str {
        match self {
            LinkKind::SetPassword => "password",
            LinkKind::SignIn => "sign-in",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The schema allows no other text. If there is one nevertheless, the person may only read.
impl<'a> FromSql<'a> for Role {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Role, Box<dyn Error + Sync + Send>> {
        let text = <&str>::from_sql(ty, raw)?;
        Ok(Role::parse(text).unwrap_or(Role::Viewer))
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

impl<'a> FromSql<'a> for UserId {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<UserId, Box<dyn Error + Sync + Send>> {
        Uuid::from_sql(ty, raw).map(UserId)
    }

    fn accepts(ty: &Type) -> bool {
        <Uuid as FromSql>::accepts(ty)
    }
}
