//! All access of svc-ingest to PostgreSQL.
//!
//! **Invariant:** no other crate writes SQL or knows a table's columns. The public API is the
//! named methods of [`Store`], of [`RegistrationTx`] and of [`Listener`]; rows, parameters and
//! transactions are private. Statements are unnamed and typed, and no session state is kept,
//! so a PgBouncer in transaction mode may be between the store and the server.
//!
//! # Reading order
//!
//! The first comment of each folder names its files in reading order. A folder imports from those above it only.
//!
//! 1. `values`: ids, closed sets and records that several folders share ([`AgentId`], [`AgentStatus`], [`HostFacts`],
//!    [`Labels`]).
//! 2. `history`: how samples are packed into chunks and summed up as rollups, computed in memory.
//! 3. `pg`: connections and transactions ([`Store`], [`DatabaseUrl`], [`StoreError`], [`Listener`]).
//! 4. `statements`: parameters, rows as structs, bounded lists ([`Page`]), advisory locks. `prelude` has the names that
//!    nearly every file of the following folders imports.
//! 5. `schema`: migrations ([`Store::migrate`]), roles and their privileges ([`WebRole`]), facts about the server
//!    ([`ServerFacts`]).
//! 6. `service`: what the service reads and writes while it runs: registrations, leases, sessions, samples, compaction,
//!    retention.
//! 7. `people`: what people ask and decide, by the admin commands and in the web console.

mod history;
mod people;
mod pg;
mod prelude;
mod schema;
mod service;
mod statements;
mod values;

pub use people::agents::{
    AgentDetail, AgentFilter, AgentRecord, ApprovalMode, Decision, EventRecord, WaitingAgent,
};
pub use people::books::{AgentBooks, GapRecord};
pub use people::cells::{AgentMove, Arrival, Arrived, MoveFilter};
pub use people::console::{
    ActivityCursor, ActivityFilter, ActivityPage, ActivityRecord, AttentionCounts, By,
    DatabaseState, DiskColumns, EventMark, FleetCounts, HostCursor, HostSearch, HostSort,
    HostState, HostsFound, HostsPage, LinkKind, LoginRecord, OpenSession, Outcome, PresenceMark,
    PresencePoint, Retired, Role, RollupPoint, SampleColumns, SessionRecord, SparkPoint,
    TokenRequest, Total, UserId, UserRecord, WrittenSearch,
};
pub use people::hosts::{Disk, HostDetail, HostIdentity, HostRecord, IdentifierRecord};
pub use people::keys::{AgentKey, AgentKeys, KeyChange};
pub use people::overview::{AgentCounts, HistoryState, HostCounts, Overview, TokenCounts};
pub use people::rollouts::{
    NewRelease, NewRollout, ReleaseRecord, RolloutAgent, RolloutDetail, RolloutPreview,
    RolloutRecord,
};
pub use people::settings::{
    AgentSettingsView, Apply, NewRule, RuleChange, SettingsCost, SettingsRule,
};
pub use people::signing_keys::SigningKeyUse;
pub use people::tokens::{NewToken, TokenDetail, TokenRecord};
pub use people::trust::{AgentTrust, AnchorRecord, DistrustingAgent, NewAnchor};
pub use pg::error::{Rejection, RejectionKind, SchemaError, StoreError, Unavailability};
pub use pg::listen::Listener;
pub use pg::pool::{Bulkhead, Store, StoreOptions};
pub use pg::tls::TlsError;
pub use pg::url::{DatabaseUrl, DatabaseUrlError, SslMode};
pub use schema::migrate::{Migration, MigrationReport, SchemaState};
pub use schema::server_facts::ServerFacts;
pub use schema::web_role::WebRole;
pub use service::clock::ClockReading;
pub use service::compaction::{COMPACTION_STEP, CompactionStep, HostOfHour};
pub use service::fleet_gauges::{AgentGroup, FleetGauges, FleetState};
pub use service::fleet_pictures::{
    BIN_PERCENT, FleetPictures, VersionCount, VitalPicture, WorstHost,
};
pub use service::instances::{
    InstanceRecord, InstanceState, LeaseClaim, LeaseRenewal, NewInstance,
};
pub use service::keys::{KeyQuestion, KeyStanding, NextKey};
pub use service::moves::{CellRecord, MoveAsked};
pub use service::registration::{
    HostMatch, KnownAgent, NewAgent, Newcomer, RegisteredNewcomer, RegistrationLookup,
    RegistrationTx, TokenEffect, TokenRow, TokenState,
};
pub use service::samples::{
    DiskRow, GapKind, GapRow, OptionalVitals, PartRow, Range, SampleRow, Watermark,
};
pub use service::session_digest::SessionDigest;
pub use service::sessions::{
    CloseCause, Displaced, Opened, SWEEP_BATCH, SessionClose, SessionHeard, SessionOpen,
    StoredSession, Swept,
};
pub use service::settings::{SettingsMark, SettingsReport, WantedSettings};
pub use service::trust::{TrustList, TrustReport};
pub use service::updates::{
    OpenRollout, RolloutFigures, RolloutStep, RunningRollout, UpdateReport,
};
pub use statements::page::Page;
pub use values::agent_settings::{AgentSettings, LogSetting, RefusedSetting, UpdateSetting};
pub use values::event_kind::EventKind;
pub use values::facts::{AgentFacts, HostFacts, IdentifierKind, Identifiers};
pub use values::ids::{AgentId, HostId, TokenId};
pub use values::instance_load::{CORES_PER_REPORT_A_SECOND, InstanceLoad, PLANNED, TELLING_AGENTS};
pub use values::key_prefix::KeyPrefix;
pub use values::labels::{LabelChange, Labels, LabelsError};
pub use values::liveness::Liveness;
pub use values::rollout::{Hours, RolloutError, RolloutState, Stage, UpdateStep, stages};
pub use values::status::{AgentStatus, PendingReason, Presence, PresenceCause};
pub use values::vitals::{Measure, PartKind};
