//! The list of hosts: search, keyset pages, sparklines, and the ids that a search means.
//!
//! A search is a list of conditions. Those on labels, presence and tokens run first, in a materialized
//! part: otherwise the planner walks the hosts in the order of their names until enough of them
//! match, which for a rare label means all of them. The page's ids are found first, and only they are
//! joined with the rest that is shown.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::types::{Json, ToSql, Type};
use uuid::Uuid;

use crate::{
    error::StoreError,
    ids::{AgentId, HostId},
    page::Page,
    pool::{Bulkhead, Store},
    record::record,
    tx::Param,
};

/// Which hosts to list. All conditions must hold. The default is every host in service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostSearch {
    /// Parts of the hostname, or a whole address.
    pub texts: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// A part of the operating system's name.
    pub os: Option<String>,
    /// The beginning of the agent's version.
    pub version: Option<String>,
    /// The presence of the active agent.
    pub online: Option<bool>,
    /// Retired hosts instead of those in service.
    pub retired: bool,
    /// At least this use of the fullest disk, in percent.
    pub disk_at_least: Option<i16>,
    /// Hosts of agents that registered with this token.
    pub token: Option<Uuid>,
    /// Hosts that are online with a clock that is off by more than 30 s.
    pub skewed: bool,
    /// Hosts with gaps since yesterday.
    pub gaps: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HostSort {
    #[default]
    Name,
    /// The fullest disk first.
    Disk,
    /// The longest offline first; only agents that are offline.
    Offline,
}

/// Which page of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HostsPage {
    pub search: HostSearch,
    pub sort: HostSort,
    /// The sort key and the id of the last host of the page before.
    pub after: Option<(String, Uuid)>,
}

record! {
    #[derive(Debug, Clone)]
    pub struct HostListRow {
        pub id: HostId,
        pub hostname: String,
        pub os: String,
        pub os_version: String,
        pub ip_addresses: Vec<String>,
        pub labels: Value,
        pub retired_at: Option<Timestamp>,
        pub agent_id: Option<AgentId>,
        pub version: Option<String>,
        pub presence: Option<String>,
        pub presence_since: Option<Timestamp>,
        pub cause: Option<String>,
        pub vitals_at: Option<Timestamp>,
        pub cpu_percent: Option<f64>,
        pub memory_used_bytes: Option<i64>,
        pub memory_total_bytes: i64,
        pub fullest_disk_percent: Option<i16>,
        pub fullest_disk_mount_point: Option<String>,
        /// The sort key of the page, as text.
        pub sort_key: String,
    }
}

record! {
    /// The mean use of the processors in one hour.
    #[derive(Debug, Clone)]
    pub struct SparkPoint {
        pub host_id: HostId,
        /// 0 is the oldest hour shown.
        pub position: i32,
        pub cpu_percent: f64,
    }
}

const COLUMNS: &str =
    "h.id, h.hostname, h.os, h.os_version, h.ip_addresses, h.labels, h.retired_at, a.id AS agent_id,
                a.version, s.presence, s.presence_since, s.cause, h.vitals_at, h.cpu_percent, h.memory_used_bytes,
                h.memory_total_bytes, h.fullest_disk_percent, h.fullest_disk_mount_point";

/// The active agent of `h`, if it has one.
const AGENT: &str = "LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
           LEFT JOIN agent_state s ON s.agent_id = a.id";

const SKEWED: &str = "h.id IN (SELECT off.host_id FROM agent_state clock JOIN agents off ON off.id = clock.agent_id
                           WHERE clock.presence = 'online' AND off.status = 'active' AND abs(clock.clock_skew_ms) > 30000)";

const GAPS: &str = "h.id IN (SELECT lacking.host_id FROM (SELECT * FROM metric_gaps ORDER BY id DESC LIMIT 100000) g
                           JOIN agents lacking ON lacking.id = g.agent_id
                         WHERE g.recorded_at > now() - interval '1 day')";

/// The conditions of a search as SQL, and their parameters.
#[derive(Default)]
struct Conditions {
    /// On `hosts h` alone, each answered by an index that knows no order.
    selective: Vec<String>,
    /// The other ones on `hosts h`.
    host: Vec<String>,
    /// Those on the active agent, and on the place in the order.
    outer: Vec<String>,
    /// Whether a condition or the order needs the active agent.
    with_agent: bool,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Conditions {
    fn of(search: &HostSearch) -> Conditions {
        let mut all = Conditions::default();
        all.host.push(match search.retired {
            true => "h.retired_at IS NOT NULL".into(),
            false => "h.retired_at IS NULL".into(),
        });
        for text in &search.texts {
            all.text(text);
        }
        if !search.labels.is_empty() {
            let labels = all.param(Json(search.labels.clone()), Type::JSONB);
            all.selective.push(format!("h.labels @> {labels}"));
        }
        if let Some(os) = &search.os {
            let os = all.param(like(os), Type::TEXT);
            all.host
                .push(format!("(h.os || ' ' || h.os_version) ILIKE {os}"));
        }
        if let Some(version) = &search.version {
            let version = all.param(version.clone(), Type::TEXT);
            all.outer.push(format!("starts_with(a.version, {version})"));
            all.with_agent = true;
        }
        all.presence(search.online);
        if let Some(least) = search.disk_at_least {
            let least = all.param(least, Type::INT2);
            all.host.push(format!("h.fullest_disk_percent >= {least}"));
        }
        if let Some(token) = search.token {
            let token = all.param(token, Type::UUID);
            all.selective.push(format!(
                "h.id IN (SELECT host_id FROM agents WHERE token_id = {token})"
            ));
        }
        if search.skewed {
            all.selective.push(SKEWED.into());
        }
        if search.gaps {
            all.selective.push(GAPS.into());
        }
        all
    }

    /// A part of the name, or a whole address. Only what can be one is looked for among addresses:
    /// otherwise two indexes would have to be combined for every search.
    fn text(&mut self, text: &str) {
        let part = self.param(like(text), Type::TEXT);
        match text.parse::<std::net::IpAddr>() {
            Ok(_) => {
                let address = self.param(vec![text.to_owned()], Type::TEXT_ARRAY);
                self.selective.push(format!(
                    "(h.hostname ILIKE {part} OR h.ip_addresses @> {address})"
                ));
            }
            Err(_) => self.host.push(format!("h.hostname ILIKE {part}")),
        }
    }

    /// Few agents are offline, as a rule: an index has them.
    fn presence(&mut self, online: Option<bool>) {
        match online {
            Some(true) => {
                self.outer.push("s.presence = 'online'".into());
                self.with_agent = true;
            }
            Some(false) => self.selective.push(
                "h.id IN (SELECT gone.host_id FROM agent_state away JOIN agents gone ON gone.id = away.agent_id
                           WHERE away.presence = 'offline' AND gone.status = 'active')"
                    .into(),
            ),
            None => {}
        }
    }

    fn param(&mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> String {
        self.params.push((Box::new(value), kind));
        format!("${}", self.params.len())
    }

    /// A query of `columns` of the hosts that all conditions leave. The columns may be those of
    /// `found` and of the agent.
    fn sql(&self, columns: &str) -> String {
        let hosts = [self.selective.as_slice(), &self.host]
            .concat()
            .join(" AND ");
        let outer = match self.outer.is_empty() {
            true => "true".to_owned(),
            false => self.outer.join(" AND "),
        };
        let agent = if self.with_agent { AGENT } else { "" };
        match self.selective.is_empty() {
            true => format!("SELECT {columns} FROM hosts h {agent} WHERE {hosts} AND {outer}"),
            false => format!(
                "WITH found AS MATERIALIZED (
                    SELECT h.id, h.hostname, h.fullest_disk_percent FROM hosts h WHERE {hosts})
                 SELECT {columns} FROM found h {agent} WHERE {outer}"
            ),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        let borrowed = self.params.iter();
        borrowed
            .map(|(value, kind)| (value.as_ref() as _, kind.clone()))
            .collect()
    }
}

impl HostSort {
    /// The sort key as text, the condition on the rows after a key, and the order.
    fn parts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            HostSort::Name => (
                "h.hostname",
                "(h.hostname, h.id) > ($K, $I)",
                "h.hostname, h.id",
            ),
            HostSort::Disk => (
                "coalesce(h.fullest_disk_percent, -1)::text",
                "(coalesce(h.fullest_disk_percent, -1) < $K::int
                  OR coalesce(h.fullest_disk_percent, -1) = $K::int AND h.id > $I)",
                "h.fullest_disk_percent DESC NULLS LAST, h.id",
            ),
            HostSort::Offline => (
                "coalesce(extract(epoch FROM s.presence_since), 0)::text",
                "(s.presence_since, h.id) > (to_timestamp($K::float8), $I)",
                "s.presence_since, h.id",
            ),
        }
    }
}

impl Store {
    pub async fn console_hosts(
        &self,
        page: &HostsPage,
        limit: u32,
    ) -> Result<Page<HostListRow>, StoreError> {
        let mut conditions = Conditions::of(&page.search);
        let (key, after, order) = page.sort.parts();
        if page.sort == HostSort::Offline {
            conditions.with_agent = true;
            if page.search.online.is_none() {
                conditions.presence(Some(false));
            }
        }
        if let Some((last, id)) = &page.after {
            let last = conditions.param(last.clone(), Type::TEXT);
            let id = conditions.param(*id, Type::UUID);
            conditions
                .outer
                .push(after.replace("$K", &last).replace("$I", &id));
        }
        let sql = format!(
            "-- console_hosts
            SELECT {COLUMNS}, page.sort_key
              FROM (SELECT ids.*, row_number() OVER () AS place
                      FROM ({} ORDER BY {order} LIMIT ${}) ids) page
              JOIN hosts h ON h.id = page.id {AGENT}
             ORDER BY page.place",
            conditions.sql(&format!("h.id, {key} AS sort_key")),
            conditions.params.len() + 1
        );
        let params = conditions.params();
        self.console_page("console_hosts", &sql, &params, limit, HostListRow::from_row)
            .await
    }

    /// The rows of these hosts, in the order of their names.
    pub async fn console_hosts_by_id(
        &self,
        hosts: &[Uuid],
    ) -> Result<Vec<HostListRow>, StoreError> {
        let sql = format!(
            "-- console_hosts_by_id
            SELECT {COLUMNS}, h.hostname AS sort_key FROM hosts h {AGENT} WHERE h.id = ANY ($1) ORDER BY h.hostname, h.id"
        );
        let params = [(&hosts as _, Type::UUID_ARRAY)];
        let rows = self.read("console_hosts_by_id", Bulkhead::Ingest, &sql, &params);
        rows.await?.iter().map(HostListRow::from_row).collect()
    }

    /// How many hosts a search finds, at most `most`.
    pub async fn console_hosts_count(
        &self,
        search: &HostSearch,
        most: i64,
    ) -> Result<i64, StoreError> {
        let conditions = Conditions::of(search);
        let sql = format!(
            "-- console_hosts_count\nSELECT count(*) FROM ({} LIMIT {most}) found",
            conditions.sql("1")
        );
        let params = conditions.params();
        let rows = self.read("console_hosts_count", Bulkhead::Ingest, &sql, &params);
        let count = rows.await?.first().map(|row| row.try_get(0));
        Ok(count.transpose()?.unwrap_or(0))
    }

    /// The ids that a search finds, in the order of the names, at most `most`.
    pub async fn console_host_ids(
        &self,
        search: &HostSearch,
        most: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        let conditions = Conditions::of(search);
        let sql = format!(
            "-- console_host_ids\n{} ORDER BY h.hostname, h.id LIMIT {most}",
            conditions.sql("h.id")
        );
        let params = conditions.params();
        let rows = self.read("console_host_ids", Bulkhead::Ingest, &sql, &params);
        rows.await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// The last 24 hours of these hosts.
    pub async fn console_sparklines(&self, hosts: &[Uuid]) -> Result<Vec<SparkPoint>, StoreError> {
        let sql = "-- console_sparklines
            SELECT host_id, (23 - floor(extract(epoch FROM date_trunc('hour', now(), 'UTC') - hour) / 3600))::int AS position,
                   cpu_percent_avg AS cpu_percent
              FROM host_metrics_hourly
             WHERE host_id = ANY ($1) AND hour > now() - interval '24 hours' AND hour <= now()
             ORDER BY host_id, hour";
        let params = [(&hosts as _, Type::UUID_ARRAY)];
        let rows = self.read("console_sparklines", Bulkhead::Ingest, sql, &params);
        rows.await?.iter().map(SparkPoint::from_row).collect()
    }

    /// Like `read_page`, with the connections of pages.
    pub(super) async fn console_page<T>(
        &self,
        name: &'static str,
        sql: &str,
        params: &[Param<'_>],
        limit: u32,
        from_row: fn(&tokio_postgres::Row) -> Result<T, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let asked = i64::from(limit) + 1;
        let mut params = params.to_vec();
        params.push((&asked, Type::INT8));
        let rows = self.read(name, Bulkhead::Ingest, sql, &params).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Page {
            truncated: rows.len() > limit,
            rows: rows
                .iter()
                .take(limit)
                .map(from_row)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// The pattern of ILIKE that finds `text` anywhere, with its wildcards taken literally.
fn like(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_in_a_search_are_literal() {
        assert_eq!(like("50%_a\\"), "%50\\%\\_a\\\\%");
    }
}
