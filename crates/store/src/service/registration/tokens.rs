//! The token's part of a registration: its state is read first, and a use is taken last.
//!
//! Thousands of agents may register with one token at once. Taking a use locks the token's
//! row until the commit, so it is the last statement of the transaction. It takes a use only
//! from a token that is still active at that moment. A key takes a use of a token once,
//! whatever happens to its agent in between.
//!
//! Which state a token is in, and what it does, have one definition each: the SQL functions `enrolment_token_state` and
//! `enrolment_token_effect`.

use std::time::Duration;

use super::RegistrationTx;
use crate::prelude::*;

/// A token as the transaction has read it. Another transaction may change it meanwhile.
#[derive(Clone, Debug)]
pub struct TokenRow {
    pub id: TokenId,
    pub state: TokenState,
    /// Of a token that is active.
    pub effect: TokenEffect,
}

/// What a token does for a key on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEffect {
    Activate,
    LeavePending,
    /// A person decides between the key and the machine's active agent.
    Conflict(AgentId),
    /// The key takes the place of the machine's active agent.
    Replace(AgentId),
}

/// Whether a token can be used, and if not, since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenState {
    Active,
    Expired { at: Timestamp },
    Exhausted { at: Option<Timestamp> },
    Revoked { at: Timestamp },
}

impl RegistrationTx {
    /// The token with this hash, and what it does on a machine. `host` is the machine's record, if it has one; `quiet` is how
    /// long an agent must have been offline before a token may replace it.
    pub async fn token_by_hash(
        &self,
        hash: &[u8; 32],
        host: Option<HostId>,
        quiet: Duration,
    ) -> Result<Option<TokenRow>> {
        let sql = "-- token_by_hash
            SELECT token.id, token.expires_at, token.revoked_at, token.last_used_at, old.id AS incumbent,
                   enrolment_token_state(token) AS state,
                   enrolment_token_effect(token, old.id, CASE s.presence WHEN 'offline' THEN s.presence_since END, $3) AS effect
              FROM enrolment_tokens token
              LEFT JOIN agents old ON old.host_id = $2 AND old.status = 'active'
              LEFT JOIN agent_state s ON s.agent_id = old.id
             WHERE token.hash = $1";
        let (host, quiet) = (host.map(|id| id.0), quiet.as_secs_f64());
        let params = params![hash.as_slice(), host, quiet];
        let row = self.0.query_opt(sql, &params).await?;
        row.map(|row| TokenRow::from_row(&row)).transpose()
    }

    /// Takes one use, unless this key has taken one of this token before. If the token is no
    /// longer active, because another transaction took its last use or revoked it after
    /// [`token_by_hash`](Self::token_by_hash), this is a conflict: the registration is retried
    /// and then reads the new state.
    ///
    /// The transaction has locked the key, so two calls cannot both find no earlier use.
    pub async fn token_spend(&self, token: TokenId, key: &[u8; 32]) -> Result<()> {
        let sql = "-- token_spend
            WITH earlier AS (
                SELECT FROM enrolment_token_uses WHERE token_id = $1 AND key = $2),
            taken AS (
                UPDATE enrolment_tokens token SET uses = uses + 1, last_used_at = now()
                 WHERE id = $1 AND enrolment_token_state(token) = 'active' AND NOT EXISTS (SELECT FROM earlier)
                RETURNING id),
            noted AS (
                INSERT INTO enrolment_token_uses (token_id, key) SELECT id, $2 FROM taken)
            SELECT EXISTS (SELECT FROM earlier) OR EXISTS (SELECT FROM taken) AS spent";
        let params = params![token.0, key.as_slice()];
        match self.0.query_one(sql, &params).await?.try_get("spent")? {
            true => Ok(()),
            false => Err(StoreError::Conflict(None)),
        }
    }
}

impl TokenRow {
    fn from_row(row: &Row) -> Result<TokenRow> {
        Ok(TokenRow {
            id: row.try_get("id")?,
            state: TokenState::from_row(row)?,
            effect: TokenEffect::from_row(row)?,
        })
    }
}

impl TokenEffect {
    fn from_row(row: &Row) -> Result<TokenEffect> {
        let effect: &str = row.try_get("effect")?;
        Ok(match (effect, row.try_get("incumbent")?) {
            ("replace", Some(incumbent)) => TokenEffect::Replace(incumbent),
            (_, Some(incumbent)) => TokenEffect::Conflict(incumbent),
            ("activate", None) => TokenEffect::Activate,
            _ => TokenEffect::LeavePending,
        })
    }
}

impl TokenState {
    pub(super) fn from_row(row: &Row) -> Result<TokenState> {
        Ok(match row.try_get("state")? {
            "active" => TokenState::Active,
            "expired" => TokenState::Expired {
                at: row.try_get("expires_at")?,
            },
            "exhausted" => TokenState::Exhausted {
                at: row.try_get("last_used_at")?,
            },
            _ => TokenState::Revoked {
                at: row.try_get("revoked_at")?,
            },
        })
    }
}
