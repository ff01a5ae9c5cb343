//! Refusals: how the service says no. A gRPC status with a reason of the wire contract and, where waiting
//! helps, a retry delay. The text is for the person who runs the agent, and says what to do next.

use std::time::Duration;

use http::HeaderMap;
use jiff::Timestamp;
use svc_proto::contract::{DOMAIN, Reason, limits::REPLACED_WAIT};
use svc_store::{AgentStatus, Opened, StoreError};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    enrol::RegisterError,
    error_chain::chain,
    log_limit::LogLimit,
    session::{EndReason, OpenError},
};

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
    /// The key was the agent's once.
    RetiredKey,
    AgentPending,
    AgentRejected,
    AgentRevoked,
    AgentDeleted,
    IdentityInUse,
    /// The key counts as online on another machine, which has not been heard lately.
    IdentityPresumedInUse,
    RateLimited {
        retry: Duration,
    },
    MessageTooLarge,
    /// The client's key has as many connections as one key may have.
    TooManyConnections,
    HelloTimeout,
    ProtocolViolation(String),
    SessionReplaced,
    /// The agent has sent nothing for longer than allowed.
    Silent,
    Draining {
        retry: Duration,
    },
    DatabaseUnavailable,
    /// All permits for streams of this kind are taken.
    Overloaded,
    /// A fault of the service; its log has the details.
    Internal,
}

impl Refusal {
    pub fn into_status(self) -> Status {
        let mut details = ErrorDetails::new();
        if let Some(reason) = self.reason() {
            details.set_error_info(reason.as_str(), DOMAIN, []);
        }
        if let Some(after) = self.retry() {
            details.set_retry_info(Some(after));
        }
        Status::with_error_details(self.code(), self.message(), details)
    }

    fn code(&self) -> Code {
        match (self, self.reason()) {
            (_, Some(reason)) => reason.code(),
            (Self::AgentDeleted, None) => Code::NotFound,
            (_, None) => Code::Internal,
        }
    }

    /// The name of the reason, for metrics.
    pub fn reason_name(&self) -> Option<&'static str> {
        self.reason().map(Reason::as_str)
    }

    /// The name of the reason that headers or trailers of this service carry.
    pub fn reason_in(headers: &HeaderMap) -> Option<&'static str> {
        let info = Status::from_header_map(headers)?.get_details_error_info()?;
        Reason::from_name(&info.reason).map(Reason::as_str)
    }

    /// The contract has no reason for a deleted agent (NOT_FOUND) and a fault of the service (INTERNAL).
    fn reason(&self) -> Option<Reason> {
        Some(match self {
            Self::MalformedRequest(_) => Reason::MalformedRequest,
            Self::MalformedToken => Reason::MalformedToken,
            Self::TokenUnknown => Reason::TokenUnknown,
            Self::TokenExpired { .. } => Reason::TokenExpired,
            Self::TokenExhausted { .. } => Reason::TokenExhausted,
            Self::TokenRevoked { .. } => Reason::TokenRevoked,
            Self::JwtMissing => Reason::JwtMissing,
            Self::JwtInvalid => Reason::JwtInvalid,
            Self::JwtExpired => Reason::JwtExpired,
            Self::KeyMismatch => Reason::KeyMismatch,
            Self::RetiredKey => Reason::RetiredKey,
            Self::AgentPending => Reason::AgentPending,
            Self::AgentRejected => Reason::AgentRejected,
            Self::AgentRevoked => Reason::AgentRevoked,
            Self::IdentityInUse => Reason::IdentityInUse,
            Self::IdentityPresumedInUse => Reason::IdentityPresumedInUse,
            Self::RateLimited { .. } => Reason::RateLimited,
            Self::MessageTooLarge => Reason::MessageTooLarge,
            Self::TooManyConnections => Reason::TooManyConnections,
            Self::HelloTimeout => Reason::HelloTimeout,
            Self::ProtocolViolation(_) => Reason::ProtocolViolation,
            Self::SessionReplaced => Reason::SessionReplaced,
            Self::Silent => Reason::Silent,
            Self::Draining { .. } => Reason::Draining,
            Self::DatabaseUnavailable => Reason::DatabaseUnavailable,
            Self::Overloaded => Reason::Overloaded,
            Self::AgentDeleted | Self::Internal => return None,
        })
    }

    fn retry(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry } => Some((*retry).max(Duration::from_secs(1))),
            Self::TooManyConnections => Some(Duration::from_secs(30)),
            Self::Draining { retry } => Some(*retry),
            Self::DatabaseUnavailable => Some(Duration::from_secs(5)),
            Self::SessionReplaced => Some(REPLACED_WAIT),
            // Not shorter: one agent may open a stream every 10 s.
            Self::Overloaded | Self::IdentityPresumedInUse => Some(Duration::from_secs(10)),
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
            Self::RetiredKey => {
                "another key has taken the place of this one, so this disk is a copy or was restored: use the newer key, or \
                 make a new one and register it as successor_key over this one"
            }
            Self::AgentPending => "this agent waits for approval",
            Self::AgentRejected => "this agent was rejected: an administrator can reopen it",
            Self::AgentRevoked => "this agent was revoked: an administrator can reopen it",
            Self::AgentDeleted => "this agent was deleted",
            Self::IdentityInUse => {
                "the same key is live on another machine, as after cloning a disk: make a new key and register it as \
                 successor_key over this one"
            }
            Self::IdentityPresumedInUse => {
                "this key counts as online on another machine that is not heard at the moment: wait until that machine \
                 is heard or offline"
            }
            Self::RateLimited { .. } => "too many registrations: wait",
            Self::TooManyConnections => "this client key has too many connections open: close one, or wait",
            Self::MessageTooLarge => "the message is larger than this method accepts",
            Self::ProtocolViolation(what) => return format!("the protocol was broken: {what}"),
            Self::HelloTimeout => "no Hello came in time",
            Self::SessionReplaced => "a newer call of this agent took over",
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
            RegisterError::RetiredKey { .. } => Self::RetiredKey,
            RegisterError::IdentityInUse { .. } => Self::IdentityInUse,
            RegisterError::IdentityPresumedInUse { .. } => Self::IdentityPresumedInUse,
            RegisterError::NotAnOrigin => {
                Self::MalformedRequest("successor_key needs an active agent's connection".into())
            }
            RegisterError::TooManyClones { .. } => Self::RateLimited {
                retry: Duration::from_mins(10),
            },
            RegisterError::RateLimited { retry } => Self::RateLimited { retry },
            RegisterError::Overloaded => Self::Overloaded,
            RegisterError::Unavailable => Self::DatabaseUnavailable,
            RegisterError::LookupFailed => Self::Internal,
            RegisterError::Store(error) => error.into(),
        }
    }
}

static AWAY: LogLimit = LogLimit::new();
static FAILED: LogLimit = LogLimit::new();

/// Logs the whole error chain once. The client learns only whether waiting helps.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let reason = chain(&error);
        if error.is_unavailable() {
            AWAY.line(|suppressed| {
                tracing::warn!(
                    reason,
                    suppressed,
                    "a call failed because the database is away"
                );
            });
            return Self::DatabaseUnavailable;
        }
        FAILED.line(|suppressed| {
            tracing::error!(reason, suppressed, "a call failed in the database");
        });
        Self::Internal
    }
}

/// Why a session was not opened.
impl From<Opened> for Refusal {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::Open { .. } => Self::Internal,
            Opened::Late | Opened::Locked => Self::DatabaseUnavailable,
            Opened::KeyMismatch => Self::KeyMismatch,
            Opened::RetiredKey => Self::RetiredKey,
            Opened::NotActive(status) => not_active(status),
            Opened::IdentityInUse => Self::IdentityInUse,
            Opened::PresumedInUse => Self::IdentityPresumedInUse,
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
            OpenError::Replaced => Self::SessionReplaced,
            OpenError::Failed => Self::Internal,
        }
    }
}

impl From<EndReason> for Refusal {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::NotActive(status) => not_active(status),
            EndReason::Deleted => Self::AgentDeleted,
            EndReason::Replaced => Self::SessionReplaced,
            EndReason::Silent => Self::Silent,
            EndReason::Drained { slot } => Self::Draining { retry: slot },
            EndReason::Unstored => Self::DatabaseUnavailable,
        }
    }
}
