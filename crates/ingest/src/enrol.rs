//! Enrolment: registers agents by token, key and facts, and issues JWTs to approved agents.

mod admission;
mod identity;
mod issue;
mod limits;
mod lookups;
mod newcomers;
mod permits;
mod register;
mod schedule;
mod statuses;

pub use admission::{Admission, Admitted};
pub use identity::identifiers;
pub use issue::{IssueError, Issuer};
pub use limits::RegisterLimits;
pub use lookups::LookupPart;
pub use newcomers::NewcomerPart;
pub use permits::Permit;
pub use register::{Enrolment, RegisterError, RegisteredAgent, Registration};
pub use statuses::{StatusError, StatusPart};
pub use svc_common::enrolment_token::{EnrolmentToken, TokenHash};
