//! Values of messages, as the agent uses them.

use std::time::{Duration, SystemTime};

use secrecy::SecretString;
use svc_proto::v1;

/// A JWT and when it expires.
#[derive(Clone, Debug)]
pub struct Credential {
    pub jwt: SecretString,
    pub expires_at: Option<SystemTime>,
}

impl From<v1::Credential> for Credential {
    fn from(credential: v1::Credential) -> Self {
        Self {
            jwt: credential.jwt.into(),
            expires_at: system_time(credential.expires_at),
        }
    }
}

/// A duration of a message; a negative one counts as absent.
pub(crate) fn duration(given: Option<prost_types::Duration>) -> Option<Duration> {
    given.and_then(|given| Duration::try_from(given).ok())
}

/// A timestamp of a message.
pub(crate) fn system_time(given: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    given.and_then(|given| SystemTime::try_from(given).ok())
}
