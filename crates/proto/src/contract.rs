//! The rules of the protocol that the `.proto` files cannot express: why the service
//! refuses a call and what the client does then ([`Reason`], [`Action`]), how large a
//! message may be ([`limits`]), what proves a new key ([`new_key`]), and how long a client waits before it retries
//! ([`Backoff`]).
//!
//! docs/protocol.md describes the same rules in prose. The service, the agent and the
//! fleet simulator all take them from here, so that they cannot disagree.

mod backoff;
pub mod limits;
pub mod new_key;
mod reason;

pub use backoff::{Backoff, BackoffBounds, LONGEST_HINT};
pub use reason::{Action, DOMAIN, Reason};

/// The reason in the Goodbye of an agent that has moved to another cell.
pub const GOODBYE_MOVED: &str = "moved";
/// The capability of an agent that moves to other cells when it is told to.
pub const CELLS: &str = "cells";

/// The HTTP/2 `:path` of `Register`.
pub const REGISTER_PATH: &str = "/svc.ingest.v1.IngestService/Register";
/// The HTTP/2 `:path` of `Heartbeat`.
pub const HEARTBEAT_PATH: &str = "/svc.ingest.v1.IngestService/Heartbeat";
