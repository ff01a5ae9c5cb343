//! An agent's life: four states, and the ways between them.
//!
//! The database's trigger enforces them, whoever writes; this is where they can
//! be read, and a test holds the two against each other.

use serde::Serialize;

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

    /// Whether a decision may lead from `self` to `to`.
    pub fn can_become(self, to: AgentStatus) -> bool {
        use AgentStatus::{Active, Pending, Rejected, Revoked};
        matches!(
            (self, to),
            (Pending, Active | Rejected) | (Active, Revoked) | (Rejected | Revoked, Pending)
        )
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

    /// The schema allows no other text; one that got in anyway admits nobody.
    pub(crate) fn from_column(text: &str) -> AgentStatus {
        AgentStatus::parse(text).unwrap_or(AgentStatus::Revoked)
    }
}
