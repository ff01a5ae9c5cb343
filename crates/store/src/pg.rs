//! Connections and transactions: from the connection string to one attempt of a transaction, and what is done about each failure.
//!
//! 1. `pool`, `bulkhead` and `connections`: `Store`, its pools (`Bulkhead`), deadlines and retries.
//! 2. `tx`, `checkout` and `cancel`: one attempt of a transaction; why a cancelled one leaves nothing open, here
//!    and on the server.
//! 3. `error`: `StoreError`, classified by what a caller does about it.
//! 4. `metrics`: what is counted of each named call.
//! 5. `url` and `tls`: `DatabaseUrl`, with libpq's forms and its meaning of `sslmode`.
//! 6. `connect` and `servers`: opening connections, to several hosts; leaving a server after a failover.
//! 7. `direct_connection` and `listen`: connections outside the pools; `Listener`.

pub(crate) mod bulkhead;
mod cancel;
mod checkout;
mod connect;
mod connections;
pub(crate) mod direct_connection;
pub(crate) mod error;
pub(crate) mod listen;
mod metrics;
pub(crate) mod pool;
mod servers;
pub(crate) mod tls;
pub(crate) mod tx;
pub(crate) mod url;
