//! All access of svc-ingest to PostgreSQL.
//!
//! **Invariant:** no other crate writes SQL or knows a table's columns. The public API is the
//! named methods of [`Store`], of [`RegistrationTx`] and of [`Listener`]; rows, parameters and
//! transactions are private. Statements are unnamed and typed, and no session state is kept,
//! so a PgBouncer in transaction mode may be between the store and the server.
//!
//! # Reading order
//!
//! Connections and transactions:
//!
//! 1. `pool`, `bulkhead` and `connections`: [`Store`], its pools ([`Bulkhead`]), deadlines and retries.
//! 2. `tx`, `checkout` and `cancel`: one attempt of a transaction; why a cancelled one leaves nothing open, here
//!    and on the server.
//! 3. `error`: [`StoreError`], classified by what a caller does about it.
//! 4. `metrics`: what is counted of each named call.
//! 5. `url` and `tls`: [`DatabaseUrl`], with libpq's forms and its meaning of `sslmode`.
//! 6. `connect` and `servers`: opening connections, to several hosts; leaving a server after a failover.
//!    `direct_connection` and `listen`: connections outside the pools; [`Listener`].
//! 7. `locks`: the advisory locks and their keys.
//! 8. `installation`, `server_facts`, `migrate`, `web_role` and `runtime_role`: roles and database of a new
//!    installation, the server ([`ServerFacts`]), the schema ([`Store::migrate`]), and the privileges of the web application
//!    ([`Store::web_role_grant`]) and of a service that does not own the tables.
//!
//! The service:
//!
//! 9. `ids`, `status`, `liveness`, `facts`, `labels`: [`AgentId`], [`AgentStatus`], [`Liveness`], [`HostFacts`], [`Labels`].
//! 10. `registration`: newcomers in batches ([`Store::registrations_admit`]), and the steps of every other
//!     registration on a [`RegistrationTx`].
//! 11. `instances`: leases of instances ([`Store::lease_claim`]) and how they are fenced.
//! 12. `sessions`: heartbeat streams and presence ([`Store::sessions_open`]), fenced by epochs; `session_digest`: whether
//!     an instance holds what is stored ([`Store::sessions_digest`]).
//! 13. `vitals`: the kinds of parts of a sample, declared once. `samples` and `arrays`: exactly-once storage
//!     of samples ([`Store::samples_append`]).
//! 14. `watermarks`: what is committed, read without locks ([`Store::watermarks`]).
//! 15. `compaction`: closed hours become chunks and rollups ([`Store::compaction_step`]).
//! 16. `retention`: partitions, created ahead and dropped ([`Store::partitions_drop`]); what is removed row by row.
//!     `fleet_gauges`: the state of the fleet in numbers ([`Store::fleet_gauges`]).
//!
//! The admin commands:
//!
//! 17. `params`, `record` and `page`: how values become parameters, and rows structs and bounded lists ([`Page`]).
//! 18. `tokens`, `agents`, `hosts`, `books`, `signing_keys`: what the commands show and decide.
//! 19. `overview`: counts of everything ([`Store::overview`]).
//!
//! The web console:
//!
//! 20. `console`: the queries of its pages, its people and sessions, and its own schema.

mod agents;
mod arrays;
mod books;
mod bulkhead;
mod cancel;
mod checkout;
mod clock;
mod compaction;
mod connect;
mod connections;
mod console;
mod direct_connection;
mod error;
mod facts;
mod fleet_gauges;
mod history;
mod hosts;
mod ids;
mod installation;
mod instance_load;
mod instances;
mod labels;
mod listen;
mod liveness;
mod locks;
mod metrics;
mod migrate;
mod migration;
mod overview;
mod page;
mod params;
mod pool;
mod prelude;
mod record;
mod registration;
mod retention;
mod runtime_role;
mod samples;
mod server_facts;
mod servers;
mod session_digest;
mod sessions;
mod signing_keys;
mod status;
mod text_enum;
mod tls;
mod tokens;
mod tx;
mod url;
mod vitals;
mod watermarks;
mod web_role;

pub use agents::{AgentDetail, AgentFilter, AgentRecord, ApprovalMode, Decision, EventRecord};
pub use books::{AgentBooks, GapRecord};
pub use clock::ClockReading;
pub use compaction::{COMPACTION_STEP, CompactionStep, HostOfHour};
pub use console::{
    ActivityCursor, ActivityFilter, ActivityPage, ActivityRecord, AttentionCounts, DatabaseState,
    DiskColumns, EventMark, FleetCounts, GapReason, HostCursor, HostListRow, HostSearch, HostSort,
    HostsFound, HostsPage, InstanceRecord, LinkKind, LoginRecord, PresenceMark, Role, RollupPoint,
    SampleColumns, SessionRecord, SparkPoint, TokenRequest, Total, UserId, UserRecord,
};
pub use error::{Rejection, RejectionKind, SchemaError, StoreError, Unavailability};
pub use facts::{AgentFacts, HostFacts, IdentifierKind, Identifiers};
pub use fleet_gauges::{AgentGroup, FleetGauges, FleetState};
pub use hosts::{HostDetail, HostFilter, HostIdentity, HostRecord, IdentifierRecord};
pub use ids::{AgentId, HostId, TokenId};
pub use instance_load::InstanceLoad;
pub use instances::{InstanceRow, LeaseClaim, LeaseRenewal, NewInstance};
pub use labels::{LabelChange, Labels, LabelsError};
pub use listen::Listener;
pub use liveness::Liveness;
pub use migrate::{Migration, MigrationReport, SchemaState};
pub use overview::{AgentCounts, HistoryState, HostCounts, Overview, TokenCounts};
pub use page::Page;
pub use pool::{Bulkhead, Store, StoreOptions};
pub use registration::{
    HostMatch, KnownAgent, NewAgent, Newcomer, RegisteredNewcomer, RegistrationLookup,
    RegistrationTx, TokenEffect, TokenRow, TokenState,
};
pub use samples::{DiskRow, GapKind, GapRow, OptionalVitals, PartRow, Range, SampleRow, Watermark};
pub use server_facts::ServerFacts;
pub use session_digest::SessionDigest;
pub use sessions::{
    CloseCause, Displaced, Opened, SWEEP_BATCH, SessionClose, SessionHeard, SessionOpen,
    StoredSession, Swept,
};
pub use signing_keys::SigningKeyUse;
pub use status::AgentStatus;
pub use tls::TlsError;
pub use tokens::{NewToken, TokenDetail, TokenRecord};
pub use url::{DatabaseUrl, DatabaseUrlError, SslMode};
pub use vitals::{Measure, PartKind};
pub use web_role::WebRole;
