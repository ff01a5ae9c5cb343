//! Everything svc-ingest says to PostgreSQL: the connection string, the pool,
//! the schema, and one file a resource.
//!
//! The invariant: no other crate writes SQL or knows a table's columns, so the
//! schema can change with this crate alone as its witness. Statements are sent
//! unnamed and typed, and no session state is kept, because a PgBouncer in
//! transaction mode may stand between us and the server.

mod error;
mod facts;
mod ids;
mod instances;
mod listen;
mod locks;
mod metrics;
mod migrate;
mod pool;
mod registration;
mod status;
mod tls;
mod tx;
mod url;

pub use error::{SchemaError, StoreError, Unavailability};
pub use facts::{AgentFacts, HostFacts, IdentifierKind, Identifiers, same_machine};
pub use ids::{AgentId, HostId, TokenId};
pub use instances::{InstanceRow, LeaseClaim, LeaseRenewal, NewInstance};
pub use listen::Listener;
pub use migrate::{MigrationReport, SchemaState};
pub use pool::{Bulkhead, Store, StoreOptions};
pub use registration::{HostMatch, Incumbent, KnownAgent, Look, NewAgent, TokenRow, TokenState};
pub use status::AgentStatus;
pub use tls::TlsError;
pub use tokio_postgres::Row;
pub use tokio_postgres::types::{ToSql, Type};
pub use tx::{Param, Tx, TxLimits};
pub use url::{DatabaseUrl, DatabaseUrlError, SslMode};
