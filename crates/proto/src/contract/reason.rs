//! Why the service refuses a call or ends a stream, and what a client does about it.

use tonic::Code;

/// The `domain` of every `google.rpc.ErrorInfo` that the service sends.
pub const DOMAIN: &str = "svc-ingest";

/// What a client does after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The service does not accept the JWT: discard it and register over the same key.
    RegisterAgain,
    /// The agent is not active, and an administrator decides: discard the JWT and
    /// register, which returns the agent's status.
    WaitForPerson,
    /// The agent was deleted: discard its state and register as a new one.
    RegisterAsNew,
    /// The enrolment token is not valid: an administrator creates a new one.
    NewToken,
    /// The key is live on another machine, so this disk is a clone, or it was retired, so this
    /// disk is old: create a new key and register it as the successor.
    TakeSuccessor,
    /// A newer stream of the same agent took over: wait
    /// [`REPLACED_WAIT`](super::limits::REPLACED_WAIT), then reconnect.
    YieldToReplacement,
    /// The service cannot serve this client now: retry after its hint or a backoff.
    RetryLater,
    /// The service did not accept the message: the client or the service has a defect.
    Defect,
    /// The connection was lost, or the service has a fault: reconnect after a backoff.
    Reconnect,
}

impl Action {
    /// The action for a status with `name` as the reason of its `ErrorInfo`, or empty.
    ///
    /// A reason that this version does not know falls back to the status code, so that a
    /// newer service can add reasons without breaking older agents.
    pub fn for_status(code: Code, name: &str) -> Self {
        if let Some(reason) = Reason::from_name(name) {
            return reason.action();
        }
        match code {
            Code::NotFound => Self::RegisterAsNew,
            Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => Self::Defect,
            Code::ResourceExhausted | Code::Unavailable if !name.is_empty() => Self::RetryLater,
            _ => Self::Reconnect,
        }
    }
}

/// Defines [`Reason`] from one table: variant, name on the wire, status code, action.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal $code:ident $action:ident;)+) => {
        /// The reason of a refusal, as `google.rpc.ErrorInfo` names it.
        ///
        /// Two refusals have no reason: a deleted agent (NOT_FOUND) and a fault of the
        /// service (INTERNAL). [`Action::for_status`] covers them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $reason,)+
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$reason,)+];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }

            /// The gRPC status code that the service sends with this reason.
            pub const fn code(self) -> Code {
                match self {
                    $(Self::$reason => Code::$code,)+
                }
            }

            pub const fn action(self) -> Action {
                match self {
                    $(Self::$reason => Action::$action,)+
                }
            }
        }
    };
}

reasons! {
    /// A field is missing or out of bounds.
    MalformedRequest    "MALFORMED_REQUEST"    InvalidArgument   Defect;
    /// The messages on a stream break a rule of the protocol.
    ProtocolViolation   "PROTOCOL_VIOLATION"   InvalidArgument   Defect;
    /// The enrolment token is missing, mistyped or cut short.
    MalformedToken      "MALFORMED_TOKEN"      InvalidArgument   NewToken;
    TokenUnknown        "TOKEN_UNKNOWN"        Unauthenticated   NewToken;
    TokenExpired        "TOKEN_EXPIRED"        Unauthenticated   NewToken;
    /// Every use of the token is taken.
    TokenExhausted      "TOKEN_EXHAUSTED"      Unauthenticated   NewToken;
    TokenRevoked        "TOKEN_REVOKED"        Unauthenticated   NewToken;
    JwtMissing          "JWT_MISSING"          Unauthenticated   RegisterAgain;
    JwtInvalid          "JWT_INVALID"          Unauthenticated   RegisterAgain;
    JwtExpired          "JWT_EXPIRED"          Unauthenticated   RegisterAgain;
    /// The connection's client key is not the key of the JWT's agent.
    KeyMismatch         "KEY_MISMATCH"         Unauthenticated   RegisterAgain;
    /// Another key of the agent has taken the place of this one: the disk is a copy, or was restored.
    RetiredKey          "RETIRED_KEY"          Unauthenticated   TakeSuccessor;
    AgentPending        "AGENT_PENDING"        PermissionDenied  WaitForPerson;
    AgentRejected       "AGENT_REJECTED"       PermissionDenied  WaitForPerson;
    AgentRevoked        "AGENT_REVOKED"        PermissionDenied  WaitForPerson;
    /// This key is live on another machine.
    IdentityInUse       "IDENTITY_IN_USE"      AlreadyExists     TakeSuccessor;
    /// This key counts as online on another machine, which has not been heard lately: a
    /// clone, or this very agent after its machine failed over. The client keeps its key.
    IdentityPresumedInUse "IDENTITY_PRESUMED_IN_USE" Unavailable RetryLater;
    /// A newer stream of the same agent took over.
    SessionReplaced     "SESSION_REPLACED"     Aborted           YieldToReplacement;
    /// Too many registrations.
    RateLimited         "RATE_LIMITED"         ResourceExhausted RetryLater;
    /// The client key has as many connections as one key may have.
    TooManyConnections  "TOO_MANY_CONNECTIONS" ResourceExhausted RetryLater;
    MessageTooLarge     "MESSAGE_TOO_LARGE"    ResourceExhausted RetryLater;
    /// No Hello arrived within [`HELLO_DEADLINE`](super::limits::HELLO_DEADLINE).
    HelloTimeout        "HELLO_TIMEOUT"        DeadlineExceeded  Reconnect;
    /// The agent sent nothing for two intervals and 10 s.
    Silent              "SILENT"               DeadlineExceeded  Reconnect;
    /// The instance is stopping.
    Draining            "DRAINING"             Unavailable       RetryLater;
    DatabaseUnavailable "DATABASE_UNAVAILABLE" Unavailable       RetryLater;
    /// The instance has no free slot for another stream of this kind.
    Overloaded          "OVERLOADED"           Unavailable       RetryLater;
}

impl Reason {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_reason() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.as_str()), Some(*reason));
            assert_eq!(
                Action::for_status(reason.code(), reason.as_str()),
                reason.action()
            );
        }
        assert_eq!(Reason::from_name(""), None);
        assert_eq!(Reason::from_name("jwt_missing"), None);
    }

    /// `InvalidArgument` is INVALID_ARGUMENT in the guide.
    fn code_name(code: Code) -> String {
        let mut name = String::new();
        for letter in format!("{code:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }

    #[test]
    fn the_guide_lists_every_reason_beside_its_status_code() {
        let guide = include_str!("../../../../docs/protocol.md");
        for reason in Reason::ALL {
            let (name, code) = (reason.as_str(), code_name(reason.code()));
            let row = |line: &str| line.contains(&format!("| {code} |")) && line.contains(name);
            assert!(guide.lines().any(row), "docs/protocol.md: {code} {name}");
        }
    }

    #[test]
    fn a_status_without_a_known_reason_is_handled_by_its_code() {
        for (code, name, action) in [
            (Code::NotFound, "", Action::RegisterAsNew),
            (Code::Internal, "", Action::Reconnect),
            (Code::Unavailable, "", Action::Reconnect),
            (Code::Unavailable, "A_LATER_REASON", Action::RetryLater),
            (Code::Unimplemented, "", Action::Defect),
            (Code::OutOfRange, "A_LATER_REASON", Action::Defect),
        ] {
            assert_eq!(Action::for_status(code, name), action, "{code:?} {name}");
        }
    }
}
