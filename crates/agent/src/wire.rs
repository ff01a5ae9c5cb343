//! The client side of the protocol, without a disk: addresses, connections, the two
//! calls, and how a call fails.
//!
//! A program that simulates many agents needs only this module,
//! [`identity`](crate::identity) and [`trust`](crate::trust).

mod address;
mod connect;
mod exceptions;
mod failure;
mod heartbeat;
mod names;
mod peers;
mod probe;
mod proxy;
mod race;
mod register;
mod values;

pub use address::{Address, Addresses};
pub use connect::{ConnectError, Connection, Connector, Download, Route, Server, Timeouts};
pub use exceptions::Exceptions;
pub use failure::CallFailure;
pub use heartbeat::{HeartbeatCall, MAX_REPORT_BYTES, MAX_REPORT_SAMPLES};
pub use names::Names;
pub use peers::Peers;
pub use probe::probe;
pub use proxy::Proxy;
pub use register::{RegisterCall, Registration, RegistrationStatus};
pub use values::Credential;
pub(crate) use values::{duration, system_time};
