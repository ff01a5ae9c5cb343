//! The conversation with the service, without a disk: addresses, connections, the
//! two calls, and what refusals mean. Whoever plays many agents at once uses this
//! module, [`identity`](crate::identity) and [`trust`](crate::trust) alone.

mod address;
mod backoff;
mod connect;
mod probe;
mod refusal;
mod register;
mod stream;

pub use address::{Address, Addresses};
pub use backoff::Backoff;
pub use connect::{ConnectError, Connection, Connector, Patience};
pub use probe::probe;
pub use refusal::{Reason, Refusal};
pub use register::{Credential, Registering, Standing, register};
pub use stream::{Heard, MAX_REPORT_BYTES, MAX_REPORT_SAMPLES, Stream, greet};
pub(crate) use stream::{length, time};
