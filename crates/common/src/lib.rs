//! What the crates of the service and the console share: [`settings`] from the environment, the [`log`] and its
//! [limits](log_limit), [`rate`] limits, a plain [`http`] port, the form of [enrolment tokens](enrolment_token), the agents'
//! [JWTs](jwt), the [actor] of a command, the [declaration of metrics](mod@metrics) and their format, lists of [`networks`], certificates for [`tls`], how [text] from outside is shown, and small tools ([`error_chain`], [`periodic`], [`signals`], [`sync`]). Nothing
//! here knows of databases or pages.

pub mod actor;
pub mod enrolment_token;
pub mod error_chain;
pub mod http;
pub mod jwt;
pub mod log;
pub mod log_limit;
pub mod metrics;
pub mod networks;
pub mod periodic;
pub mod rate;
pub mod settings;
pub mod signals;
pub mod sync;
pub mod text;
pub mod tls;

/// The version that the service reports of itself.
pub const VERSION: &str = match option_env!("SVC_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
