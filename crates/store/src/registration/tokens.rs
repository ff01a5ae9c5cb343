//! The token's side of a registration: judged and spent.
//!
//! A whole fleet may come by one token. Its row is therefore locked only by the
//! spending, which is the last thing that a transaction does before it commits, and
//! which takes a use only where there is one.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::RegistrationTx;
use crate::error::StoreError;
use crate::ids::TokenId;

/// A token, as it stood when it was looked at.
#[derive(Clone, Debug)]
pub struct TokenRow {
    pub id: TokenId,
    pub label: String,
    pub state: TokenState,
    pub auto_approve: bool,
    pub allow_reinstall: bool,
    pub labels: Value,
}

/// What a token is good for now; what it is no longer good for says since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenState {
    Active,
    Expired { at: Timestamp },
    Exhausted { at: Option<Timestamp> },
    Revoked { at: Timestamp },
}

impl RegistrationTx {
    pub async fn token_by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        let sql = "-- token_by_hash
            SELECT id, label, auto_approve, allow_reinstall, labels, expires_at, revoked_at, last_used_at,
                   uses >= max_uses AS used_up, now() AS now
              FROM enrolment_tokens WHERE hash = $1";
        let row = self
            .0
            .query_opt(sql, &[(&hash.as_slice(), Type::BYTEA)])
            .await?;
        row.map(|row| TokenRow::from_row(&row)).transpose()
    }

    /// Takes one use. Where another transaction has taken the last one since the token
    /// was looked at, or revoked it, this one is begun anew and will find out.
    pub async fn token_spend(&self, token: TokenId) -> Result<(), StoreError> {
        let sql = "-- token_spend
            UPDATE enrolment_tokens SET uses = uses + 1, last_used_at = now()
             WHERE id = $1 AND uses < max_uses AND revoked_at IS NULL
               AND (expires_at IS NULL OR expires_at > now())";
        match self.0.execute(sql, &[(&token.0, Type::UUID)]).await? {
            0 => Err(StoreError::Conflict(None)),
            _ => Ok(()),
        }
    }
}

impl TokenRow {
    fn from_row(row: &Row) -> Result<TokenRow, StoreError> {
        Ok(TokenRow {
            id: TokenId(row.try_get("id")?),
            label: row.try_get("label")?,
            state: TokenState::from_row(row)?,
            auto_approve: row.try_get("auto_approve")?,
            allow_reinstall: row.try_get("allow_reinstall")?,
            labels: row.try_get("labels")?,
        })
    }
}

impl TokenState {
    pub(super) fn from_row(row: &Row) -> Result<TokenState, StoreError> {
        let now: Timestamp = row.try_get("now")?;
        let revoked: Option<Timestamp> = row.try_get("revoked_at")?;
        let expires: Option<Timestamp> = row.try_get("expires_at")?;
        if let Some(at) = revoked {
            return Ok(TokenState::Revoked { at });
        }
        if let Some(at) = expires.filter(|at| *at <= now) {
            return Ok(TokenState::Expired { at });
        }
        if row.try_get("used_up")? {
            return Ok(TokenState::Exhausted {
                at: row.try_get("last_used_at")?,
            });
        }
        Ok(TokenState::Active)
    }
}
