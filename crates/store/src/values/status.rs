//! The four statuses of an agent. Which one may follow which is decided by a trigger in the database alone, for every
//! writer: `agents_guard` in `schema/20_enrolment.sql`.

use std::error::Error;

use serde::Serialize;
use tokio_postgres::types::{FromSql, Type};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentStatus {
    Pending,
    Active,
    Rejected,
    Revoked,
}

impl AgentStatus {
    pub const ALL: [AgentStatus; 4] = [
        AgentStatus::Pending,
        AgentStatus::Active,
        AgentStatus::Rejected,
        AgentStatus::Revoked,
    ];

    /// Whether retiring its host, or revoking its token with the agents, ends it.
    pub fn is_current(self) -> bool {
        matches!(self, AgentStatus::Pending | AgentStatus::Active)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            AgentStatus::Pending => "pending",
            AgentStatus::Active => "active",
            AgentStatus::Rejected => "rejected",
            AgentStatus::Revoked => "revoked",
        }
    }

    pub fn parse(text: &str) -> Option<AgentStatus> {
        let mut all = AgentStatus::ALL.into_iter();
        all.find(|status| status.as_str() == text)
    }

    /// The schema allows no other text. If there is one nevertheless, the agent has no access.
    pub(crate) fn from_column(text: &str) -> AgentStatus {
        AgentStatus::parse(text).unwrap_or(AgentStatus::Revoked)
    }
}

impl<'a> FromSql<'a> for AgentStatus {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<AgentStatus, Box<dyn Error + Sync + Send>> {
        <&str>::from_sql(ty, raw).map(AgentStatus::from_column)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}
