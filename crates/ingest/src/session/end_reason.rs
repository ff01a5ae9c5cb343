//! Why the instance ends a session, and what the database records about it.

use std::time::Duration;

use svc_store::{AgentStatus, CloseCause};

/// How long after its slot a drained agent may take to reconnect and still count as online.
const RETURN: Duration = Duration::from_secs(30);

/// Why the instance ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    NotActive(AgentStatus),
    Deleted,
    /// A newer stream of the same agent took over.
    Replaced,
    /// The client has been silent for longer than allowed.
    Silent,
    /// The instance stops. The agent reconnects after `slot`.
    Drained {
        slot: Duration,
    },
    /// A report could not be stored. The agent reconnects and sends it again.
    Unstored,
}

impl EndReason {
    /// What the database records about the agent's presence. For a replaced session the record has no
    /// effect, because only the newest epoch changes presence.
    pub fn cause(self) -> CloseCause {
        match self {
            Self::NotActive(_) | Self::Deleted => CloseCause::Refused,
            Self::Replaced | Self::Silent => CloseCause::Lost,
            Self::Drained { slot } => drained(slot),
            // The agent is there, and comes back in seconds.
            Self::Unstored => drained(Duration::ZERO),
        }
    }
}

/// A drained agent counts as online until its slot, and then for as long as it may take to reconnect.
pub fn drained(slot: Duration) -> CloseCause {
    CloseCause::Drained {
        back_in: slot + RETURN,
    }
}
