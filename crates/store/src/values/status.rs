//! The four statuses of an agent. Which one may follow which is decided by a trigger in the database alone, for every
//! writer: `agents_guard` in `schema/20_enrolment.sql`.

use super::text_enum::text_enum;

text_enum! {
    /// An agent whose status is not known has no access.
    #[derive(Hash)]
    pub enum AgentStatus {
        Pending = "pending",
        Active = "active",
        Rejected = "rejected",
        Revoked = "revoked",
    }
    else Revoked
}

text_enum! {
    /// What a pending agent waits for.
    pub enum PendingReason {
        /// A decision, because its token asks for one.
        Approval = "approval",
        /// Its machine has an active agent.
        Conflict = "conflict",
        /// It began as a copy of another agent.
        Clone = "clone",
        Reopened = "reopened",
    }
}

impl AgentStatus {
    /// Whether retiring its host, or revoking its token with the agents, ends it.
    pub fn is_current(self) -> bool {
        self.is_pending() || self.is_active()
    }

    pub fn is_pending(self) -> bool {
        self == AgentStatus::Pending
    }

    pub fn is_active(self) -> bool {
        self == AgentStatus::Active
    }
}
