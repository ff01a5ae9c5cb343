//! What the statements of the service read from the tables of a large fleet, whatever the planner believes about them.
//!
//! Presence, instance and drain change for the whole fleet at once: a site stops, an instance is lost. Statistics
//! are then missing or describe the opposite, and they stay so for minutes. A plan that depends on them may read
//! the whole fleet for each agent of a batch. So every statement runs against every state of the fleet with the
//! statistics of every other one, with the time limits of the service, and `auto_explain` counts the rows.

mod calls;
mod reads;

use anyhow::{Result, ensure};
use svc_store::{NewInstance, StoreOptions};

use crate::{fixtures::*, support::*};
use calls::Fleet;
use reads::Reads;

const AGENTS: usize = 50_000;

/// What is true of all agents at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offline,
    Drained,
    /// Drained, and the time to come back is over.
    Overdue,
    Lost,
    Online,
    /// Offline, a thousand of them for so long that their hosts expire.
    Expired,
    /// Offline, and the machines were reinstalled: most of them have a pending agent, too.
    Conflict,
}

use State::{Conflict, Drained, Expired, Lost, Offline, Online, Overdue};

/// When statistics were gathered, and what became of the fleet since. The first has none.
const OPPOSITES: [(Option<State>, &[State]); 5] = [
    (None, &[Offline, Drained, Overdue, Lost, Online]),
    (
        Some(Offline),
        &[Drained, Overdue, Lost, Online, Expired, Conflict],
    ),
    (Some(Conflict), &[Offline]),
    (Some(Drained), &[Offline, Overdue, Lost, Online]),
    (Some(Lost), &[Offline, Drained, Overdue, Online]),
];

impl State {
    async fn set(self, fleet: &Fleet) -> Result<()> {
        let drained = |until: &str| {
            format!(
                "presence = 'online', cause = 'drained', instance_id = NULL, online_until = now() {until}"
            )
        };
        let held = |by: &NewInstance| {
            format!(
                "presence = 'online', cause = 'connected', instance_id = '{}', online_until = NULL",
                by.id
            )
        };
        let all = match self {
            Offline | Expired | Conflict => {
                "presence = 'offline', cause = 'goodbye', instance_id = NULL, online_until = NULL"
                    .to_owned()
            }
            Drained => drained("+ interval '5 minutes'"),
            Overdue => drained("- interval '5 minutes'"),
            Lost => held(&fleet.lost),
            Online => held(&fleet.mine),
        };
        let more = match self {
            Expired => fleet.expire(),
            Conflict => fleet.reinstall(),
            _ => String::new(),
        };
        let sql = format!(
            "SET auto_explain.log_min_duration = -1;
             DELETE FROM agents WHERE status = 'pending' AND pending_reason = 'conflict';
             UPDATE agent_state SET {all}, presence_since = now() - interval '10 minutes';
             {more}"
        );
        fleet.store.sql(&sql).await.map(drop)
    }
}

#[tokio::test]
async fn statements_read_few_rows_whatever_the_statistics_say() -> Result<()> {
    let (server, store) = own_server(&SETTINGS).await?;
    store.console_migrate().await?;
    store.partitions_create(DAY).await?;
    let agents = TestAgent::many(&store, AGENTS).await?;
    let explain = "ALTER DATABASE postgres SET auto_explain.log_min_duration = 0";
    store.sql(explain).await?;
    let store = TestStore::with(&server.url("postgres"), StoreOptions::for_service(16))?;
    let mut fleet = Fleet::new(store, agents).await?;
    let mut reads = Reads::new(server.data_dir().join("server.log"));
    for (statistics, states) in OPPOSITES {
        if let Some(state) = statistics {
            state.set(&fleet).await?;
            fleet.store.sql("ANALYZE").await?;
        }
        for state in states {
            state.set(&fleet).await?;
            reads.begin(format!("{state:?} with statistics {statistics:?}"));
            fleet.call_all(&mut reads).await?;
        }
    }
    reads.print_most();
    ensure!(
        reads.excess.is_empty(),
        "too many rows:\n{}",
        reads.excess.join("\n")
    );
    reads.ensure_complete()
}

/// Autovacuum would correct the statistics sooner or later.
const SETTINGS: [(&str, &str); 6] = [
    ("autovacuum", "off"),
    ("session_preload_libraries", "auto_explain"),
    ("auto_explain.log_analyze", "on"),
    ("auto_explain.log_timing", "off"),
    ("auto_explain.log_nested_statements", "on"),
    ("auto_explain.log_format", "json"),
];
