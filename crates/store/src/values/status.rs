//! The status and the presence of an agent. Which status may follow which is decided by a trigger in the database alone,
//! for every writer: `agents_guard` in `schema/20_enrolment.sql`.

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
        Other = "other",
    }
    else Other
}

text_enum! {
    pub enum Presence {
        Online = "online",
        /// It stopped for an update and has announced when it is back; it counts as online until then.
        Updating = "updating",
        Offline = "offline",
        /// It lives in another cell, or is expected from one.
        Moved = "moved",
    }
    else Offline
}

text_enum! {
    /// Why the presence of an agent last changed.
    pub enum PresenceCause {
        Connected = "connected",
        Goodbye = "goodbye",
        Lost = "lost",
        Drained = "drained",
        Updating = "updating",
        InstanceLost = "instance lost",
        Replaced = "replaced",
        Refused = "refused",
        Moved = "moved",
        Other = "other",
    }
    else Other
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_newer_version_permits_nothing() {
        assert_eq!(AgentStatus::from_column("paused"), AgentStatus::Revoked);
        assert_eq!(PendingReason::from_column("vote"), PendingReason::Other);
    }
}
