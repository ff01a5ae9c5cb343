//! The conditions of a search as SQL on `hosts h`, by what they cost.

use tokio_postgres::types::ToSql;

use super::{
    HostSearch, HostSort, Retired,
    text::{has_trigram, like},
    values::{SYSTEMS, VERSIONS, different},
};
use crate::{prelude::*, statements::params::Typed};

/// A condition is rare if at most this many hosts meet it, or at most `RARE_FOR_EACH` times as many as the search wants.
/// The set of these hosts is then read whole.
pub(super) const RARE: i64 = 20_000;
const RARE_FOR_EACH: i64 = 8;

const OFFLINE: Related = Related {
    probe: "SELECT FROM agent_state away JOIN agents gone ON gone.id = away.agent_id AND gone.status = 'active'
             WHERE away.presence = 'offline'",
    hosts: "SELECT gone.host_id FROM agent_state away JOIN agents gone ON gone.id = away.agent_id AND gone.status = 'active'
             WHERE away.presence = 'offline'",
    lookup: "(SELECT one.presence FROM agents mine JOIN agent_state one ON one.agent_id = mine.id
               WHERE mine.host_id = h.id AND mine.status = 'active') = 'offline'",
};

/// The probe counts agents that have a stream, because there is an index on `instance_id` and none on `presence`.
const ONLINE: Related = Related {
    probe: "SELECT FROM agent_state WHERE instance_id IS NOT NULL",
    hosts: "SELECT here.host_id FROM agent_state up JOIN agents here ON here.id = up.agent_id AND here.status = 'active'
             WHERE up.presence = 'online'",
    lookup: "(SELECT one.presence FROM agents mine JOIN agent_state one ON one.agent_id = mine.id
               WHERE mine.host_id = h.id AND mine.status = 'active') = 'online'",
};

const SKEWED: &str = "h.id IN (SELECT off.host_id FROM agent_state clock JOIN agents off ON off.id = clock.agent_id
                           WHERE clock.presence = 'online' AND off.status = 'active' AND abs(clock.clock_skew_ms) > 30000)";

/// Few agents have a gap in a day, unless the fleet could not send for long.
const GAPS: Related = Related {
    probe: "SELECT FROM agent_state lacking WHERE lacking.last_gap_at > now() - interval '1 day'",
    hosts: "SELECT those.host_id FROM agent_state lacking JOIN agents those ON those.id = lacking.agent_id
             WHERE lacking.last_gap_at > now() - interval '1 day'",
    lookup: "EXISTS (SELECT FROM agents mine JOIN agent_state one ON one.agent_id = mine.id
                      WHERE mine.host_id = h.id AND one.last_gap_at > now() - interval '1 day')",
};

/// A condition on what belongs to a host (its agents, its vitals), in three forms. The rows of `probe` decide whether the
/// search uses `hosts` or `lookup`.
struct Related<'a> {
    /// A query with about one row for each host that meets the condition, and cheap for each row. Its rows are counted, up to a
    /// bound.
    probe: &'a str,
    /// A query for the ids of the hosts that meet the condition.
    hosts: &'a str,
    /// The condition on one host `h`.
    lookup: &'a str,
}

impl<'a> Related<'a> {
    /// The hosts themselves are counted.
    fn counted(hosts: &'a str, lookup: &'a str) -> Related<'a> {
        Related {
            probe: hosts,
            hosts,
            lookup,
        }
    }
}

pub(super) struct Conditions {
    /// The condition that leaves the hosts in service, the retired ones, or both.
    pub(super) in_service: &'static str,
    /// Conditions of the form `h.id IN (…)`: few hosts meet them, or there is no other form.
    rare: Vec<String>,
    /// Conditions on the name.
    names: Vec<String>,
    /// Conditions that an index answers.
    indexed: Vec<String>,
    /// Conditions that cost a lookup for each host.
    lookups: Vec<String>,
    /// How many hosts may meet a rare condition.
    most_rare: i64,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Conditions {
    /// The conditions of a search for `limit` hosts. `None` if no host can match.
    pub(super) async fn of(
        tx: &Tx,
        search: &HostSearch,
        sort: HostSort,
        limit: i64,
    ) -> Result<Option<Self>> {
        let mut all = Self {
            in_service: match search.retired {
                Retired::No => "h.retired_at IS NULL",
                Retired::Too => "true",
                Retired::Only => "h.retired_at IS NOT NULL",
            },
            rare: Vec::new(),
            names: Vec::new(),
            indexed: Vec::new(),
            lookups: Vec::new(),
            most_rare: RARE.max(limit * RARE_FOR_EACH),
            params: Vec::new(),
        };
        all.of_hosts(search);
        if !all.systems(tx, search).await? || !all.versions(tx, search).await? {
            return Ok(None);
        }
        all.of_agents(tx, search, sort).await?;
        all.of_vitals(tx, search).await?;
        Ok(Some(all))
    }

    fn of_hosts(&mut self, search: &HostSearch) {
        for text in &search.texts {
            self.text(text);
        }
        if !search.labels.is_empty() {
            let labels = self.param(Json(search.labels.clone()));
            self.indexed.push(format!("h.labels @> {labels}"));
        }
        if let Some(hostname) = &search.hostname {
            let name = self.param(hostname.clone());
            let hosts = format!("SELECT named.id FROM hosts named WHERE named.hostname = {name}");
            self.rare.push(format!("h.id IN ({hosts})"));
        }
        if let Some(key) = &search.key {
            let (first, last) = key.range();
            let (first, last) = (self.param(first), self.param(last));
            let hosts = format!(
                "SELECT keyed.host_id FROM agents keyed WHERE keyed.key BETWEEN decode({first}, 'hex') AND decode({last}, 'hex')"
            );
            self.rare.push(format!("h.id IN ({hosts})"));
        }
        if search.skewed {
            self.rare.push(SKEWED.into());
        }
    }

    /// A part of the name, or a whole IP address. Addresses are compared only if the text is one:
    /// otherwise every search would have to combine two indexes.
    fn text(&mut self, text: &str) {
        let name = self.name_has(&text.to_ascii_lowercase());
        match text.parse::<std::net::IpAddr>() {
            Ok(_) => {
                let address = self.param(vec![text.to_owned()]);
                self.indexed
                    .push(format!("({name} OR h.ip_addresses @> {address})"));
            }
            Err(_) => self.names.push(name),
        }
    }

    /// The index on names is one of trigrams. For a text without a trigram it would return every host, which
    /// costs more than reading all names. `strpos` cannot use the index, so the planner does not try.
    fn name_has(&mut self, text: &str) -> String {
        const NAME: &str = "lower(h.hostname COLLATE \"C\")";
        match has_trigram(text) {
            true => {
                let pattern = self.param(like(text));
                format!("{NAME} LIKE {pattern}")
            }
            false => {
                let text = self.param(text.to_owned());
                format!("strpos({NAME}, {text}) > 0")
            }
        }
    }

    /// Adds the condition on the operating system. Returns whether any host can match.
    async fn systems(&mut self, tx: &Tx, search: &HostSearch) -> Result<bool> {
        let Some(os) = &search.os else {
            return Ok(true);
        };
        let part = os.to_lowercase();
        let Some(mut systems) = different(tx, SYSTEMS).await? else {
            let os = self.param(like(os));
            let condition = format!("(h.os || ' ' || h.os_version) ILIKE {os}");
            self.indexed.push(condition);
            return Ok(true);
        };
        systems.retain(|system| system.to_lowercase().contains(&part));
        let any = !systems.is_empty();
        let systems = self.param(systems);
        self.indexed
            .push(format!("h.os || ' ' || h.os_version = ANY ({systems})"));
        Ok(any)
    }

    /// Adds the condition on the agent's version. Returns whether any host can match.
    async fn versions(&mut self, tx: &Tx, search: &HostSearch) -> Result<bool> {
        let Some(begin) = &search.version else {
            return Ok(true);
        };
        let (any, condition) = match different(tx, VERSIONS).await? {
            Some(mut versions) => {
                versions.retain(|version| version.starts_with(begin));
                let any = !versions.is_empty();
                let versions = self.param(versions);
                (any, format!("mine.version = ANY ({versions})"))
            }
            None => {
                let begin = self.param(begin.clone());
                (true, format!("starts_with(mine.version, {begin})"))
            }
        };
        let hosts = format!(
            "SELECT mine.host_id FROM agents mine WHERE mine.status = 'active' AND {condition}"
        );
        let lookup = format!(
            "(SELECT {condition} FROM agents mine WHERE mine.host_id = h.id AND mine.status = 'active')"
        );
        self.related(tx, &Related::counted(&hosts, &lookup)).await?;
        Ok(any)
    }

    async fn of_agents(&mut self, tx: &Tx, search: &HostSearch, sort: HostSort) -> Result<()> {
        match search.online {
            Some(true) => self.related(tx, &ONLINE).await?,
            Some(false) if sort != HostSort::Offline => self.related(tx, &OFFLINE).await?,
            _ => {}
        }
        if let Some(length) = search.offline_for {
            self.offline_for(tx, length.as_secs_f64()).await?;
        }
        if search.gaps {
            self.related(tx, &GAPS).await?;
        }
        if let Some(token) = search.token {
            let token = self.param(token);
            let hosts =
                format!("SELECT their.host_id FROM agents their WHERE their.token_id = {token}");
            let lookup = format!(
                "(SELECT true FROM agents their WHERE their.host_id = h.id AND their.token_id = {token} LIMIT 1)"
            );
            self.related(tx, &Related::counted(&hosts, &lookup)).await?;
        }
        Ok(())
    }

    /// The fleet's page counts with the same condition.
    async fn offline_for(&mut self, tx: &Tx, seconds: f64) -> Result<()> {
        let seconds = self.param(seconds);
        let since = format!("presence_since < now() - make_interval(secs => {seconds})");
        let hosts = format!(
            "SELECT long.host_id FROM agent_state away JOIN agents long ON long.id = away.agent_id AND long.status = 'active'
              WHERE away.presence = 'offline' AND away.{since}"
        );
        let lookup = format!(
            "(SELECT one.presence = 'offline' AND one.{since} FROM agents mine JOIN agent_state one ON one.agent_id = mine.id
               WHERE mine.host_id = h.id AND mine.status = 'active')"
        );
        self.related(tx, &Related::counted(&hosts, &lookup)).await
    }

    async fn of_vitals(&mut self, tx: &Tx, search: &HostSearch) -> Result<()> {
        let Some(least) = search.disk_at_least else {
            return Ok(());
        };
        let least = self.param(least);
        let hosts = format!(
            "SELECT disk.host_id FROM host_vitals disk WHERE disk.fullest_disk_percent >= {least}"
        );
        let lookup = format!(
            "(SELECT disk.fullest_disk_percent FROM host_vitals disk WHERE disk.host_id = h.id) >= {least}"
        );
        self.related(tx, &Related::counted(&hosts, &lookup)).await
    }

    async fn related(&mut self, tx: &Tx, related: &Related<'_>) -> Result<()> {
        let probe = format!(
            "-- console_hosts\nSELECT count(*) > {most} FROM (SELECT FROM ({}) all_of_them LIMIT {most} + 1) first",
            related.probe,
            most = self.most_rare,
        );
        let row = tx.query_one(&probe, &self.params()).await?;
        match row.try_get(0)? {
            true => self.lookups.push(related.lookup.into()),
            false => self.rare.push(format!("h.id IN ({})", related.hosts)),
        }
        Ok(())
    }

    pub(super) fn param<T>(&mut self, value: T) -> String
    where
        T: ToSql + Typed + Sync + Send + 'static,
    {
        self.params.push((Box::new(value), T::TYPE));
        format!("${}", self.params.len())
    }

    pub(super) fn params(&self) -> Vec<Param<'_>> {
        let borrowed = self.params.iter();
        borrowed
            .map(|(value, kind)| (value.as_ref() as _, kind.clone()))
            .collect()
    }

    pub(super) fn is_rare(&self) -> bool {
        !self.rare.is_empty()
    }

    pub(super) fn has_lookups(&self) -> bool {
        !self.lookups.is_empty()
    }

    pub(super) fn rare(&self) -> String {
        conjunction(&self.rare)
    }

    pub(super) fn only_names(&self) -> bool {
        !self.names.is_empty()
            && self.rare.is_empty()
            && self.indexed.is_empty()
            && self.lookups.is_empty()
    }

    /// The conditions on the name, and those that an index answers.
    pub(super) fn indexed(&self) -> String {
        format!(
            "{} AND {}",
            conjunction(&self.names),
            conjunction(&self.indexed)
        )
    }

    pub(super) fn lookups(&self) -> String {
        conjunction(&self.lookups)
    }
}

fn conjunction(conditions: &[String]) -> String {
    match conditions.is_empty() {
        true => "true".into(),
        false => conditions.join(" AND "),
    }
}
