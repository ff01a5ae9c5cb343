//! Enrolment: from a token, a key and a machine's facts to an agent, and from an
//! approved agent to its JWT.

mod identity;
mod issue;
mod limits;
mod register;
mod token;
mod turns;

pub use identity::identifiers;
pub use issue::{IssueError, Issuer};
pub use limits::RegisterLimits;
pub use register::{Enrolment, RegisterError, Registration, Standing};
pub use token::{EnrolmentToken, MalformedToken, TokenHash};
pub use turns::{Turn, Turns};
