//! What the service and the console share: [`settings`] from the environment, the [`log`], [`rate`] limits, a plain [`http`]
//! port, the form of [enrolment tokens](enrolment_token), the agents' [JWTs](jwt), and small tools ([`error_chain`],
//! [`sync`]). Nothing here knows of databases or pages.

pub mod enrolment_token;
pub mod error_chain;
pub mod http;
pub mod jwt;
pub mod log;
pub mod rate;
pub mod settings;
pub mod sync;
