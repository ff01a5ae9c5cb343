//! Enrolment tokens for the admin commands. Only the hash of a token is stored, and it is
//! never shown.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::types::{Json, Type};

use crate::{
    agents::AgentRecord,
    error::StoreError,
    ids::TokenId,
    labels::Labels,
    page::Page,
    pool::{Bulkhead, Store},
    record::record,
};

const SELECT: &str =
    "SELECT id, label, state, auto_approve, allow_reinstall, max_uses, uses, labels,
                created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
           FROM enrolment_token_states";

/// How many agents are shown that registered with a token: those that wait, then the newest.
const AGENTS_SHOWN: i64 = 100;

#[derive(Debug, Clone)]
pub struct NewToken {
    pub label: String,
    pub auto_approve: bool,
    pub allow_reinstall: bool,
    pub max_uses: i32,
    /// Counted by the database's clock. `None`: it never expires.
    pub expires_in: Option<Duration>,
    pub labels: Labels,
    pub created_by: String,
}

record! {
    /// A row of `enrolment_token_states`.
    #[derive(Debug, Clone, Serialize)]
    pub struct TokenRecord {
        pub id: TokenId,
        pub label: String,
        pub state: String,
        pub auto_approve: bool,
        pub allow_reinstall: bool,
        pub max_uses: i32,
        pub uses: i32,
        pub labels: Labels,
        pub created_at: Timestamp,
        pub created_by: String,
        pub expires_at: Option<Timestamp>,
        pub revoked_at: Option<Timestamp>,
        pub revoked_by: Option<String>,
        pub last_used_at: Option<Timestamp>,
    }
}

/// A token and the agents that registered with it.
#[derive(Debug, Clone, Serialize)]
pub struct TokenDetail {
    #[serde(flatten)]
    pub token: TokenRecord,
    pub agents: Vec<AgentRecord>,
}

impl Store {
    pub async fn token_create(
        &self,
        hash: &[u8; 32],
        new: &NewToken,
    ) -> Result<TokenId, StoreError> {
        let sql = "-- token_create
            INSERT INTO enrolment_tokens
                   (hash, label, auto_approve, allow_reinstall, max_uses, labels, created_by, expires_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8))
            RETURNING id";
        let seconds = new.expires_in.map(|life| life.as_secs_f64());
        let params = [
            (&hash.as_slice() as _, Type::BYTEA),
            (&new.label as _, Type::TEXT),
            (&new.auto_approve as _, Type::BOOL),
            (&new.allow_reinstall as _, Type::BOOL),
            (&new.max_uses as _, Type::INT4),
            (&Json(&new.labels) as _, Type::JSONB),
            (&new.created_by as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
        ];
        self.run("token_create", Bulkhead::Auth, async |tx| {
            Ok(tx.query_one(sql, &params).await?.try_get("id")?)
        })
        .await
    }

    /// Newest first.
    pub async fn tokens_list(&self, limit: u32) -> Result<Page<TokenRecord>, StoreError> {
        let sql = format!("-- tokens_list\n{SELECT} ORDER BY created_at DESC, id LIMIT $1");
        self.read_page(
            "tokens_list",
            Bulkhead::Auth,
            &sql,
            &[],
            limit,
            TokenRecord::from_row,
        )
        .await
    }

    /// Tokens that `name` may mean: a prefix of the id (at least 4 characters), or a label.
    pub async fn tokens_find(
        &self,
        name: &str,
        limit: u32,
    ) -> Result<Page<TokenRecord>, StoreError> {
        let sql = format!(
            "-- tokens_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(id::text, lower($1)) OR label = $1
             ORDER BY created_at DESC, id LIMIT $2"
        );
        let params = [(&name as _, Type::TEXT)];
        self.read_page(
            "tokens_find",
            Bulkhead::Auth,
            &sql,
            &params,
            limit,
            TokenRecord::from_row,
        )
        .await
    }

    /// The id of the token with this hash.
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenId>, StoreError> {
        let sql = "-- token_by_hash\nSELECT id FROM enrolment_tokens WHERE hash = $1";
        let params = [(&hash.as_slice() as _, Type::BYTEA)];
        let rows = self.read("token_by_hash", Bulkhead::Auth, sql, &params);
        let id = rows.await?.first().map(|row| row.try_get("id"));
        Ok(id.transpose()?)
    }

    pub async fn token_show(&self, token: TokenId) -> Result<Option<TokenDetail>, StoreError> {
        let sql = format!("-- token_show\n{SELECT} WHERE id = $1");
        let params = [(&token.0 as _, Type::UUID)];
        let rows = self.read("token_show", Bulkhead::Auth, &sql, &params);
        let rows = rows.await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(TokenDetail {
            token: TokenRecord::from_row(row)?,
            agents: self.agents_of_token(token, AGENTS_SHOWN).await?,
        }))
    }

    /// How many agents that registered with the token are active or pending.
    pub async fn token_current_agents(&self, token: TokenId) -> Result<i64, StoreError> {
        let sql = "-- token_current_agents
            SELECT count(*) FROM agents WHERE token_id = $1 AND status IN ('active', 'pending')";
        let params = [(&token.0 as _, Type::UUID)];
        self.run("token_current_agents", Bulkhead::Auth, async |tx| {
            Ok(tx.query_one(sql, &params).await?.try_get(0)?)
        })
        .await
    }

    /// Revokes a token and, with `revoke_agents`, the agents that registered with it. Returns
    /// how many agents.
    pub async fn token_revoke(
        &self,
        token: TokenId,
        actor: &str,
        revoke_agents: bool,
    ) -> Result<i32, StoreError> {
        let sql = "-- token_revoke\nSELECT revoke_enrolment_token($1, $2, $3)";
        let params = [
            (&token.0 as _, Type::UUID),
            (&actor as _, Type::TEXT),
            (&revoke_agents as _, Type::BOOL),
        ];
        self.run("token_revoke", Bulkhead::Auth, async |tx| {
            Ok(tx.query_one(sql, &params).await?.try_get(0)?)
        })
        .await
    }
}
