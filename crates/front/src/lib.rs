//! The front of the service: it accepts connections and hands requests to the routes that it is given. It knows clients by their
//! keys, and nothing of what agents mean.
//!
//! In reading order: [`listener`] (accept, TLS, HTTP/2), [`peer`] (the client that it found), [`places`] (who may stay), [`metrics`].

pub mod listener;
pub mod metrics;
pub mod peer;
pub mod places;
