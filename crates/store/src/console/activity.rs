//! What happened, newest first: decisions and changes of agents, of hosts, and of the console's own
//! people and tokens, in one list with one cursor.

use jiff::Timestamp;
use tokio_postgres::types::Type;

use crate::{
    error::StoreError,
    page::Page,
    pool::{Bulkhead, Store},
    record::record,
};

/// Which entries to list. The default is all but changes of presence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ActivityFilter {
    pub actor: Option<String>,
    pub kind: Option<String>,
    /// A part of the host's name, or of the subject.
    pub subject: Option<String>,
    pub presence: bool,
}

/// The last entry of the page before. Ids are unique within a source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActivityCursor {
    pub at: Timestamp,
    pub source: i32,
    pub id: i64,
}

record! {
    #[derive(Debug, Clone, serde::Serialize)]
    pub struct ActivityRecord {
        pub at: Timestamp,
        /// 1 agents, 2 hosts, 3 the console.
        pub source: i32,
        pub id: i64,
        pub kind: String,
        pub actor: Option<String>,
        pub subject: String,
        pub host_id: Option<uuid::Uuid>,
        pub agent_id: Option<uuid::Uuid>,
        pub change: String,
        pub reason: String,
    }
}

/// Of the events of agents, the newest alone: after an outage there are hundreds of thousands of changes of presence.
const NEWEST_AGENT_EVENTS: &str =
    "(SELECT * FROM agent_events ORDER BY at DESC, id DESC LIMIT 10000)";

/// Each source is read by its index on the time and gives at most a page.
const SQL: &str = "-- console_activity
    SELECT at, source, id, kind, actor, subject, host_id, agent_id, change, reason FROM (
        (SELECT e.at, 1 AS source, e.id, e.kind, e.actor, coalesce(h.hostname, e.agent_id::text) AS subject, h.id AS host_id,
                e.agent_id, concat_ws(' → ', e.from_status, e.to_status) AS change, coalesce(e.reason, '') AS reason
           FROM {agent_events} e LEFT JOIN agents a ON a.id = e.agent_id LEFT JOIN hosts h ON h.id = a.host_id
          WHERE ($7 OR e.kind <> 'presence') AND e.at <= $1 AND (e.at, 1, e.id) < ($1, $2, $3)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR h.hostname ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $8)
         UNION ALL
        (SELECT e.at, 2, e.id, e.kind, e.actor, h.hostname, h.id, e.agent_id, '', e.text
           FROM host_events e JOIN hosts h ON h.id = e.host_id
          WHERE e.at <= $1 AND (e.at, 2, e.id) < ($1, $2, $3)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR h.hostname ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $8)
         UNION ALL
        (SELECT e.at, 3, e.id, e.kind, e.actor, e.subject, NULL, NULL, '', e.detail
           FROM console.events e
          WHERE e.at <= $1 AND (e.at, 3, e.id) < ($1, $2, $3)
            AND ($4::text IS NULL OR e.actor = $4) AND ($5::text IS NULL OR e.kind = $5)
            AND ($6::text IS NULL OR e.subject ILIKE $6)
          ORDER BY e.at DESC, e.id DESC LIMIT $8)) activity
     ORDER BY at DESC, source DESC, id DESC LIMIT $8";

impl Store {
    /// The entries before `before`, or the newest ones.
    pub async fn console_activity(
        &self,
        filter: &ActivityFilter,
        before: Option<&ActivityCursor>,
        limit: u32,
    ) -> Result<Page<ActivityRecord>, StoreError> {
        self.activity("agent_events", filter, before, limit).await
    }

    /// The newest entries except changes of presence, at a cost that is bounded.
    pub async fn console_latest(&self, limit: u32) -> Result<Vec<ActivityRecord>, StoreError> {
        let all = ActivityFilter::default();
        let page = self.activity(NEWEST_AGENT_EVENTS, &all, None, limit);
        Ok(page.await?.rows)
    }

    async fn activity(
        &self,
        agent_events: &str,
        filter: &ActivityFilter,
        before: Option<&ActivityCursor>,
        limit: u32,
    ) -> Result<Page<ActivityRecord>, StoreError> {
        let sql = SQL.replace("{agent_events}", agent_events);
        let newest = ActivityCursor {
            at: Timestamp::MAX,
            source: i32::MAX,
            id: i64::MAX,
        };
        // PostgreSQL's times end before jiff's do.
        let far = Timestamp::from_second(32_503_680_000).unwrap_or(newest.at);
        let cursor = before.unwrap_or(&newest);
        let at = cursor.at.min(far);
        let subject = filter.subject.as_ref().map(|text| format!("%{text}%"));
        let params = [
            (&at as _, Type::TIMESTAMPTZ),
            (&cursor.source as _, Type::INT4),
            (&cursor.id as _, Type::INT8),
            (&filter.actor as _, Type::TEXT),
            (&filter.kind as _, Type::TEXT),
            (&subject as _, Type::TEXT),
            (&filter.presence as _, Type::BOOL),
        ];
        let from_row = ActivityRecord::from_row;
        let (name, pages) = ("console_activity", Bulkhead::Ingest);
        self.read_page(name, pages, &sql, &params, limit, from_row)
            .await
    }
}
