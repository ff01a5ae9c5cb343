//! Enrolment tokens for the admin commands and the console. Only the hash of a token is stored, and it is
//! never shown.

use std::time::Duration;

use crate::{people::agents::AgentRecord, prelude::*, values::labels::Labels};

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
    pub async fn token_create(&self, hash: &[u8; 32], new: &NewToken) -> Result<TokenId> {
        let sql = "-- token_create
            INSERT INTO enrolment_tokens
                   (hash, label, auto_approve, allow_reinstall, max_uses, labels, created_by, expires_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, now() + make_interval(secs => $8))
            RETURNING id";
        let seconds = new.expires_in.map(|life| life.as_secs_f64());
        let params = params![
            hash.as_slice(),
            new.label,
            new.auto_approve,
            new.allow_reinstall,
            new.max_uses,
            Json(&new.labels),
            new.created_by,
            seconds
        ];
        self.run_value("token_create", Auth, sql, &params).await
    }

    /// Newest first.
    pub async fn tokens_list(&self, limit: u32) -> Result<Page<TokenRecord>> {
        let sql = format!("-- tokens_list\n{SELECT} ORDER BY created_at DESC, id LIMIT $1");
        self.read_page("tokens_list", Auth, &sql, &[], limit).await
    }

    /// Tokens that `name` may mean: a prefix of the id (at least 4 characters), or a label.
    pub async fn tokens_find(&self, name: &str, limit: u32) -> Result<Page<TokenRecord>> {
        let sql = format!(
            "-- tokens_find\n{SELECT}
             WHERE length($1) >= 4 AND starts_with(id::text, lower($1)) OR label = $1
             ORDER BY created_at DESC, id LIMIT $2"
        );
        let params = params![name];
        self.read_page("tokens_find", Auth, &sql, &params, limit)
            .await
    }

    /// The id of the token with this hash.
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenId>> {
        let sql = "-- token_by_hash\nSELECT id FROM enrolment_tokens WHERE hash = $1";
        let params = params![hash.as_slice()];
        let rows = self.read("token_by_hash", Auth, sql, &params);
        let id = rows.await?.first().map(|row| row.try_get("id"));
        Ok(id.transpose()?)
    }

    pub async fn token_show(&self, token: TokenId) -> Result<Option<TokenDetail>> {
        let sql = format!("-- token_show\n{SELECT} WHERE id = $1");
        let params = params![token.0];
        let found = self.read_first("token_show", Auth, &sql, &params);
        let Some(record) = found.await? else {
            return Ok(None);
        };
        Ok(Some(TokenDetail {
            token: record,
            agents: self.agents_of_token(token, AGENTS_SHOWN).await?,
        }))
    }

    /// How many agents that registered with the token are active or pending.
    pub async fn token_current_agents(&self, token: TokenId) -> Result<i64> {
        let sql = "-- token_current_agents
            SELECT count(*) FROM agents WHERE token_id = $1 AND status IN ('active', 'pending')";
        let params = params![token.0];
        self.run_value("token_current_agents", Auth, sql, &params)
            .await
    }

    /// Revokes a token and, with `revoke_agents`, the agents that registered with it. Returns
    /// how many agents.
    pub async fn token_revoke(
        &self,
        token: TokenId,
        actor: &str,
        revoke_agents: bool,
        reason: Option<&str>,
    ) -> Result<i32> {
        let sql = "-- token_revoke\nSELECT revoke_enrolment_token($1, $2, $3, $4)";
        let params = params![token.0, actor, revoke_agents, reason];
        self.run_value("token_revoke", Auth, sql, &params).await
    }
}
