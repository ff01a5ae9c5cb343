//! How the service says no: a gRPC status with the reason of the wire contract
//! and, where waiting helps, a hint when to come back. The text is for whoever
//! runs the agent, and says what to do next.

use std::time::Duration;

use jiff::Timestamp;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use svc_store::{AgentStatus, Opened};

use crate::{
    enrol::RegisterError,
    session::{Ending, OpenError},
};

/// The `domain` of every `google.rpc.ErrorInfo`.
const DOMAIN: &str = "svc-ingest";
const CREATE_TOKEN: &str = "create a new one with `svc-ingest token create`";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    MalformedRequest(String),
    MalformedToken,
    TokenUnknown,
    TokenExpired {
        at: Timestamp,
    },
    TokenExhausted {
        at: Option<Timestamp>,
    },
    TokenRevoked {
        at: Timestamp,
    },
    JwtMissing,
    JwtInvalid,
    JwtExpired,
    KeyMismatch,
    AgentPending,
    AgentRejected,
    AgentRevoked,
    AgentDeleted,
    IdentityInUse,
    RateLimited {
        retry: Duration,
    },
    MessageTooLarge,
    /// The client's key has as many connections as one key may have.
    TooManyConnections,
    HelloTimeout,
    ProtocolViolation(String),
    SessionReplaced,
    /// The agent was not heard of for longer than it may be silent.
    Silent,
    Draining {
        retry: Duration,
    },
    DatabaseUnavailable,
    /// Others hold all the places for streams of this kind.
    Overloaded,
    /// A fault of ours: the log says which.
    Internal,
}

impl Refusal {
    pub fn into_status(self) -> Status {
        let mut details = ErrorDetails::new();
        if let Some(reason) = self.reason() {
            details.set_error_info(reason, DOMAIN, []);
        }
        if let Some(after) = self.retry() {
            details.set_retry_info(Some(after));
        }
        Status::with_error_details(self.code(), self.message(), details)
    }

    fn code(&self) -> Code {
        match self {
            Self::MalformedRequest(_) | Self::MalformedToken | Self::ProtocolViolation(_) => {
                Code::InvalidArgument
            }
            Self::HelloTimeout | Self::Silent => Code::DeadlineExceeded,
            Self::SessionReplaced => Code::Aborted,
            Self::TokenUnknown
            | Self::TokenExpired { .. }
            | Self::TokenExhausted { .. }
            | Self::TokenRevoked { .. } => Code::Unauthenticated,
            Self::JwtMissing | Self::JwtInvalid | Self::JwtExpired | Self::KeyMismatch => {
                Code::Unauthenticated
            }
            Self::AgentPending | Self::AgentRejected | Self::AgentRevoked => Code::PermissionDenied,
            Self::AgentDeleted => Code::NotFound,
            Self::IdentityInUse => Code::AlreadyExists,
            Self::RateLimited { .. } | Self::TooManyConnections | Self::MessageTooLarge => {
                Code::ResourceExhausted
            }
            Self::Draining { .. } | Self::DatabaseUnavailable | Self::Overloaded => {
                Code::Unavailable
            }
            Self::Internal => Code::Internal,
        }
    }

    /// The contract's name for it.
    pub fn reason(&self) -> Option<&'static str> {
        Some(match self {
            Self::MalformedRequest(_) => "MALFORMED_REQUEST",
            Self::MalformedToken => "MALFORMED_TOKEN",
            Self::TokenUnknown => "TOKEN_UNKNOWN",
            Self::TokenExpired { .. } => "TOKEN_EXPIRED",
            Self::TokenExhausted { .. } => "TOKEN_EXHAUSTED",
            Self::TokenRevoked { .. } => "TOKEN_REVOKED",
            Self::JwtMissing => "JWT_MISSING",
            Self::JwtInvalid => "JWT_INVALID",
            Self::JwtExpired => "JWT_EXPIRED",
            Self::KeyMismatch => "KEY_MISMATCH",
            Self::AgentPending => "AGENT_PENDING",
            Self::AgentRejected => "AGENT_REJECTED",
            Self::AgentRevoked => "AGENT_REVOKED",
            Self::IdentityInUse => "IDENTITY_IN_USE",
            Self::RateLimited { .. } => "RATE_LIMITED",
            Self::MessageTooLarge => "MESSAGE_TOO_LARGE",
            Self::TooManyConnections => "TOO_MANY_CONNECTIONS",
            Self::HelloTimeout => "HELLO_TIMEOUT",
            Self::ProtocolViolation(_) => "PROTOCOL_VIOLATION",
            Self::SessionReplaced => "SESSION_REPLACED",
            Self::Silent => "SILENT",
            Self::Draining { .. } => "DRAINING",
            Self::DatabaseUnavailable => "DATABASE_UNAVAILABLE",
            Self::Overloaded => "OVERLOADED",
            Self::AgentDeleted | Self::Internal => return None,
        })
    }

    fn retry(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry } => Some((*retry).max(Duration::from_secs(1))),
            Self::TooManyConnections => Some(Duration::from_secs(30)),
            Self::Draining { retry } => Some(*retry),
            Self::DatabaseUnavailable => Some(Duration::from_secs(5)),
            Self::Overloaded => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::MalformedRequest(what) => return format!("the request is malformed: {what}"),
            Self::TokenExpired { at } => return format!("this token expired at {at}: {CREATE_TOKEN}"),
            Self::TokenRevoked { at } => return format!("this token was revoked at {at}: {CREATE_TOKEN}"),
            Self::TokenExhausted { at } => {
                let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
                return format!("this token was used up{at}: {CREATE_TOKEN}");
            }
            Self::MalformedToken => {
                "not of an enrolment token's form (svc_enr_ and 38 characters): it is missing, mistyped or cut short"
            }
            Self::TokenUnknown => "no such token here: check that it was copied whole, and for this service",
            Self::JwtMissing => "a heartbeat needs the metadata `authorization: Bearer <jwt>`, once",
            Self::JwtInvalid => "the JWT is not valid here: register again over the same key",
            Self::JwtExpired => "the JWT has expired: register again over the same key",
            Self::KeyMismatch => "this connection's client key is not the one pinned to the JWT's agent",
            Self::AgentPending => "this agent waits for approval",
            Self::AgentRejected => "this agent was rejected: an administrator can reopen it",
            Self::AgentRevoked => "this agent was revoked: an administrator can reopen it",
            Self::AgentDeleted => "this agent was deleted",
            Self::IdentityInUse => {
                "the same key is live on another machine, as after cloning a disk: make a new key and register it as \
                 successor_key over this one"
            }
            Self::RateLimited { .. } => "too many registrations: wait",
            Self::TooManyConnections => "this client key has too many connections open: close one, or wait",
            Self::MessageTooLarge => "the message is larger than this method accepts",
            Self::ProtocolViolation(what) => return format!("the protocol was broken: {what}"),
            Self::HelloTimeout => "no Hello came in time",
            Self::SessionReplaced => "a newer stream of this agent took over",
            Self::Silent => "nothing was heard for too long",
            Self::Draining { .. } => "this instance is stopping: connect again",
            Self::DatabaseUnavailable => "the database is away: try again",
            Self::Overloaded => "no place is free for another stream of this kind: try again",
            Self::Internal => "a fault of the service: its log says which",
        }
        .to_owned()
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        refusal.into_status()
    }
}

impl From<RegisterError> for Refusal {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::TokenMissing => Self::MalformedToken,
            RegisterError::TokenUnknown => Self::TokenUnknown,
            RegisterError::TokenExpired { at } => Self::TokenExpired { at },
            RegisterError::TokenExhausted { at } => Self::TokenExhausted { at },
            RegisterError::TokenRevoked { at } => Self::TokenRevoked { at },
            RegisterError::IdentityInUse { .. } => Self::IdentityInUse,
            RegisterError::NotAnOrigin => {
                Self::MalformedRequest("successor_key needs an active agent's connection".into())
            }
            RegisterError::TooManyClones { .. } => Self::RateLimited {
                retry: Duration::from_mins(10),
            },
            RegisterError::RateLimited { retry } => Self::RateLimited { retry },
            RegisterError::Store(error) => error.into(),
        }
    }
}

/// The whole chain is logged here, once; outside, only whether waiting helps.
impl From<svc_store::StoreError> for Refusal {
    fn from(error: svc_store::StoreError) -> Self {
        let away = error.is_unavailable();
        let reason = format!("{:#}", anyhow::Error::from(error));
        if away {
            tracing::warn!(reason, "a call failed because the database is away");
            return Self::DatabaseUnavailable;
        }
        tracing::error!(reason, "a call failed in the database");
        Self::Internal
    }
}

/// What became of a stream that was not opened.
impl From<Opened> for Refusal {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::Open { .. } => Self::Internal,
            Opened::KeyMismatch => Self::KeyMismatch,
            Opened::NotActive(status) => not_active(status),
            Opened::IdentityInUse => Self::IdentityInUse,
            Opened::Deleted => Self::AgentDeleted,
        }
    }
}

fn not_active(status: AgentStatus) -> Refusal {
    match status {
        AgentStatus::Pending => Refusal::AgentPending,
        AgentStatus::Rejected => Refusal::AgentRejected,
        AgentStatus::Active | AgentStatus::Revoked => Refusal::AgentRevoked,
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Overloaded => Self::Overloaded,
            OpenError::Unavailable => Self::DatabaseUnavailable,
            OpenError::Failed => Self::Internal,
        }
    }
}

impl From<Ending> for Refusal {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::NotActive(status) => not_active(status),
            Ending::Deleted => Self::AgentDeleted,
            Ending::Replaced => Self::SessionReplaced,
            Ending::Silent => Self::Silent,
            Ending::Drained { slot } => Self::Draining { retry: slot },
            Ending::Unstored => Self::DatabaseUnavailable,
        }
    }
}
