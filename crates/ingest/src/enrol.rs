//! Enrolment: registers agents by token, key and facts, and issues JWTs to approved agents.

mod admission;
mod identity;
mod issue;
mod limits;
mod register;
mod token;

pub use admission::{Admission, Permit};
pub use identity::identifiers;
pub use issue::{IssueError, Issuer};
pub use limits::RegisterLimits;
pub use register::{Enrolment, RegisterError, RegisteredAgent, Registration};
pub use token::{EnrolmentToken, MalformedToken, TokenHash};
