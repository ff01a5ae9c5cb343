//! Everything svc-ingest says to PostgreSQL: the connection string, the pool,
//! the schema, and one file a resource.
//!
//! The invariant: no other crate writes SQL or knows a table's columns, so the
//! schema can change with this crate alone as its witness. Statements are sent
//! unnamed and typed, and no session state is kept, because a PgBouncer in
//! transaction mode may stand between us and the server.

mod agents;
mod blame;
mod books;
mod direct_connection;
mod error;
mod facts;
mod hosts;
mod ids;
mod instances;
mod listen;
mod locks;
mod metrics;
mod migrate;
mod overview;
mod page;
mod pool;
mod registration;
mod retention;
mod rollups;
mod samples;
mod sessions;
mod status;
mod tls;
mod tokens;
mod tx;
mod url;
mod watermarks;
mod web_role;

pub use agents::{AgentDetail, AgentFilter, AgentRecord, ApprovalMode, Decision, EventRecord};
pub use books::{AgentBooks, GapRecord};
pub use error::{Rejection, RejectionKind, SchemaError, StoreError, Unavailability};
pub use facts::{AgentFacts, HostFacts, IdentifierKind, Identifiers, same_machine};
pub use hosts::{HostDetail, HostFilter, HostRecord, IdentifierRecord};
pub use ids::{AgentId, HostId, TokenId};
pub use instances::{InstanceRow, LeaseClaim, LeaseRenewal, NewInstance};
pub use listen::Listener;
pub use migrate::{MigrationReport, SchemaState};
pub use overview::{AgentCounts, HistoryState, HostCounts, Overview, TokenCounts};
pub use page::Page;
pub use pool::{Bulkhead, Store, StoreOptions};
pub use registration::{
    HostMatch, Incumbent, KnownAgent, NewAgent, RegistrationLookup, RegistrationTx, TokenRow,
    TokenState,
};
pub use rollups::RollupStep;
pub use samples::{DiskRow, GapKind, GapRow, Range, SampleRow, Watermark};
pub use sessions::{
    CloseCause, Displaced, Opened, SessionClose, SessionOpen, StoredSession, Swept,
};
pub use status::AgentStatus;
pub use tls::TlsError;
pub use tokens::{NewToken, TokenDetail, TokenRecord};
pub use url::{DatabaseUrl, DatabaseUrlError, SslMode};
pub use web_role::WebRole;
