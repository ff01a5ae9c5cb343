//! What the service and the console share: [`settings`] from the environment, the [`log`], [`rate`] limits, a plain [`http`]
//! port, and small tools ([`error_chain`], [`sync`]). Nothing here knows of agents, databases or pages.

pub mod error_chain;
pub mod http;
pub mod log;
pub mod rate;
pub mod settings;
pub mod sync;
