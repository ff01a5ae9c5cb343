//! What the web console reads and writes: its own schema (`people`, `links`, `sessions`, `browsers`), and the pages.
//!
//! The console connects as the web role (`web_role`): it reads the service's tables and changes them
//! only through the functions that the role may call. It uses the bulkheads by who waits: `Ingest` for
//! the queries of pages, `Auth` for sessions and decisions, `Watch` for the live feed. So a heavy page
//! cannot keep anybody from signing in or deciding.
//!
//! Lists are read by keyset. A query has a bounded result, and pages of 200,000 hosts cost what their
//! rows cost.

mod activity;
mod browsers;
mod changes;
mod events;
mod fleet;
mod history;
mod hosts;
mod links;
mod people;
mod pictures;
mod search;
mod sessions;

/// Tables and indexes of a fleet are in memory. Parallel workers would take processors from other processes for a query of some
/// milliseconds, and wait for each other when there are none.
const NO_WORKERS: &str = "SET LOCAL max_parallel_workers_per_gather = 0";

pub use activity::{ActivityCursor, ActivityFilter, ActivityPage, ActivityRecord};
pub use changes::TokenRequest;
pub use events::{By, Outcome};
pub use fleet::{AttentionCounts, DatabaseState, FleetCounts};
pub use history::{DiskColumns, EventMark, PresenceMark, RollupPoint, SampleColumns};
pub use hosts::{HostState, SparkPoint};
pub use links::LinkKind;
pub use people::{LoginRecord, Role, UserId, UserRecord};
pub use pictures::PresencePoint;
pub use search::{
    HostCursor, HostSearch, HostSort, HostsFound, HostsPage, Retired, Total, WrittenSearch,
};
pub use sessions::{OpenSession, SessionRecord};
