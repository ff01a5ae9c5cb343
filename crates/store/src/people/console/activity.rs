//! What happened, newest first: decisions and changes of agents, of hosts, and of the console's own
//! people and tokens, in one list with one cursor.

use std::net::IpAddr;

use super::search::like;
use crate::{prelude::*, values::event_kind::EventKind};

/// Which entries to list. The default is all but changes of presence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ActivityFilter {
    pub actor: Option<String>,
    pub kind: Option<String>,
    /// A part of the host's name, or of the subject.
    pub subject: Option<String>,
    pub presence: bool,
}

record! {
    /// The last entry of the page before. Ids are unique within a source.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct ActivityCursor {
        pub at: Timestamp,
        pub source: i32,
        pub id: i64,
    }
}

record! {
    #[derive(Debug, Clone, serde::Serialize)]
    pub struct ActivityRecord {
        pub at: Timestamp,
        /// 1 agents, 2 hosts, 3 people and tokens, 4 rollouts.
        pub source: i32,
        pub id: i64,
        pub kind: EventKind,
        pub actor: Option<String>,
        pub subject: String,
        pub host_id: Option<uuid::Uuid>,
        pub agent_id: Option<uuid::Uuid>,
        pub change: String,
        pub reason: String,
        pub address: Option<IpAddr>,
    }
}

/// Some entries, and where the next ones begin.
#[derive(Debug, Clone)]
pub struct ActivityPage {
    pub rows: Vec<ActivityRecord>,
    /// The place behind which older entries may be.
    pub next: Option<ActivityCursor>,
    /// Set if the search stopped at `next` before it had found a whole page.
    pub searched_to: Option<Timestamp>,
}

/// How many entries of each source one page looks at. After an outage there are hundreds of thousands of changes of presence,
/// and a filter may match nothing: no index has what it asks for, and the tables are too large to get one in a migration.
const LOOKED_AT: i64 = 10_000;

/// The last of the entries that a page may look at: every source has at most [`LOOKED_AT`] between the cursor and it.
const HORIZON: &str = "-- console_activity
    SELECT at, source, id FROM (
        (SELECT e.at, 1 AS source, e.id FROM agent_events e WHERE e.at <= $1 AND (e.at, 1, e.id) < ($1, $2, $3)
          ORDER BY e.at DESC, e.id DESC OFFSET $4 - 1 LIMIT 1)
         UNION ALL
        (SELECT e.at, 2, e.id FROM host_events e WHERE e.at <= $1 AND (e.at, 2, e.id) < ($1, $2, $3)
          ORDER BY e.at DESC, e.id DESC OFFSET $4 - 1 LIMIT 1)
         UNION ALL
        (SELECT e.at, 3, e.id FROM people_events e WHERE e.at <= $1 AND (e.at, 3, e.id) < ($1, $2, $3)
           ORDER BY e.at DESC, e.id DESC OFFSET $4 - 1 LIMIT 1)
         UNION ALL
        (SELECT e.at, 4, e.id FROM rollout_events e WHERE e.at <= $1 AND (e.at, 4, e.id) < ($1, $2, $3)
          ORDER BY e.at DESC, e.id DESC OFFSET $4 - 1 LIMIT 1)) ends
     ORDER BY at DESC, source DESC, id DESC LIMIT 1";

/// Each source is read by its index on the time, from the cursor to the horizon, and gives at most a page. LIMIT 1 keeps the
/// planner from searching the names of all hosts first.
const SQL: &str = "-- console_activity
    SELECT at, source, id, kind, actor, subject, host_id, agent_id, change, reason, address FROM (
        (SELECT e.at, 1 AS source, e.id, e.kind, e.actor, coalesce(h.hostname, e.agent_id::text) AS subject, h.id AS host_id,
                e.agent_id, concat_ws(' → ', e.from_status, e.to_status) AS change, coalesce(e.reason, '') AS reason, e.address
           FROM agent_events e LEFT JOIN LATERAL (
                SELECT h.id, h.hostname FROM agents a JOIN hosts h ON h.id = a.host_id WHERE a.id = e.agent_id LIMIT 1) h ON true
          WHERE e.at BETWEEN $8 AND $1 AND (e.at, 1, e.id) < ($1, $2, $3) AND (e.at, 1, e.id) >= ($8, $9, $10)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR h.hostname ILIKE $6) AND ($7 OR e.kind <> 'presence')
          ORDER BY e.at DESC, e.id DESC LIMIT $11)
         UNION ALL
        (SELECT e.at, 2, e.id, e.kind, e.actor, h.hostname, h.id, e.agent_id, '', e.text, NULL
           FROM host_events e CROSS JOIN LATERAL (SELECT h.id, h.hostname FROM hosts h WHERE h.id = e.host_id LIMIT 1) h
          WHERE e.at BETWEEN $8 AND $1 AND (e.at, 2, e.id) < ($1, $2, $3) AND (e.at, 2, e.id) >= ($8, $9, $10)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR h.hostname ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $11)
         UNION ALL
        (SELECT e.at, 3, e.id, e.kind, e.actor, e.subject, NULL, NULL,
                concat_ws(', ', nullif(e.outcome, 'done'), CASE WHEN e.times > 1 THEN e.times || ' times' END), e.detail, e.address
           FROM people_events e
          WHERE e.at BETWEEN $8 AND $1 AND (e.at, 3, e.id) < ($1, $2, $3) AND (e.at, 3, e.id) >= ($8, $9, $10)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR e.subject ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $11)
         UNION ALL
        (SELECT e.at, 4, e.id, e.kind, e.actor, 'release ' || e.serial, NULL, NULL, '', e.text, NULL
           FROM rollout_events e
          WHERE e.at BETWEEN $8 AND $1 AND (e.at, 4, e.id) < ($1, $2, $3) AND (e.at, 4, e.id) >= ($8, $9, $10)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR 'release ' || e.serial ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $11)) activity
     ORDER BY at DESC, source DESC, id DESC LIMIT $11";

impl ActivityCursor {
    /// Behind every entry that there can be. PostgreSQL's times end before jiff's do.
    fn newest() -> Self {
        Self {
            at: Timestamp::from_second(32_503_680_000).unwrap_or(Timestamp::MAX),
            source: i32::MAX,
            id: i64::MAX,
        }
    }

    /// Before every entry.
    fn oldest() -> Self {
        Self {
            at: Timestamp::UNIX_EPOCH,
            source: 0,
            id: 0,
        }
    }
}

impl Store {
    /// The entries before `before`, or the newest ones. At most a page of them is found, and a bounded number is looked at:
    /// the page that comes next goes on where this one stopped.
    pub async fn console_activity(
        &self,
        filter: &ActivityFilter,
        before: Option<&ActivityCursor>,
        limit: u32,
    ) -> Result<ActivityPage> {
        let newest = ActivityCursor::newest();
        let mut before = before.unwrap_or(&newest).clone();
        before.at = before.at.clamp(Timestamp::UNIX_EPOCH, newest.at);
        let horizon = self.activity_horizon(&before).await?;
        let until = horizon.clone().unwrap_or_else(ActivityCursor::oldest);
        let subject = filter.subject.as_deref().map(like);
        let params = params![
            before.at,
            before.source,
            before.id,
            filter.actor,
            filter.kind,
            subject,
            filter.presence,
            until.at,
            until.source,
            until.id
        ];
        let found = self.read_page("console_activity", Ingest, SQL, &params, limit);
        let found: Page<ActivityRecord> = found.await?;
        let last = found.rows.last().filter(|_| found.truncated);
        let last = last.map(|row| ActivityCursor {
            at: row.at,
            source: row.source,
            id: row.id,
        });
        let searched_to = horizon.as_ref().filter(|_| last.is_none());
        Ok(ActivityPage {
            searched_to: searched_to.map(|horizon| horizon.at),
            next: last.or(horizon),
            rows: found.rows,
        })
    }

    /// `None` if all older entries may be looked at.
    async fn activity_horizon(&self, before: &ActivityCursor) -> Result<Option<ActivityCursor>> {
        let params = params![before.at, before.source, before.id, LOOKED_AT];
        self.read_first("console_activity", Ingest, HORIZON, &params)
            .await
    }
}
