//! Names of things: distinct types, so that a host can never stand for an agent.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// An installed identity; `sub` in its JWTs.
    AgentId
);
id!(
    /// A machine.
    HostId
);
id!(
    /// An enrolment token's public name.
    TokenId
);
