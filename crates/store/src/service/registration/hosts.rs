//! The host's part of a registration: finding, creating and updating its record.

use std::collections::HashSet;

use super::{RegistrationTx, pairs};
use crate::{
    prelude::*,
    values::facts::{HostFacts, IdentifierKind, Identifiers},
};

/// The host record that a set of facts belongs to, and its active agent.
#[derive(Clone, Debug)]
pub struct HostMatch {
    pub id: HostId,
    pub incumbent: Option<AgentId>,
}

impl RegistrationTx {
    /// The host that these identifiers belong to, by the rule of the SQL function `same_machine`. Kinds are tried from
    /// the strongest. A host that has one of our stronger kinds did not match there, so it is another machine. Of several
    /// hosts, one with an active agent is preferred, because then a person must decide.
    ///
    /// The search is a query over sets and does not call the function for each candidate: all hosts of a fleet that was
    /// cloned from one image share a machine id, and then every registration has as many candidates as there are hosts.
    /// `tests/it/same_machine.rs` compares the two on random machines.
    pub async fn host_match(&self, machine: &Identifiers) -> Result<Option<HostMatch>> {
        let known = self.kinds_known(machine).await?;
        let mut stronger: Vec<&str> = Vec::new();
        for kind in IdentifierKind::ALL {
            let Some(values) = machine.get(&kind) else {
                continue;
            };
            if known.contains(kind.as_str())
                && let Some(found) = self.host_match_by(kind, values, &stronger).await?
            {
                return Ok(Some(found));
            }
            stronger.push(kind.as_str());
        }
        Ok(None)
    }

    /// The kinds for which some host has one of these identifiers. For a new machine there are
    /// none, which saves the planning of the larger queries.
    async fn kinds_known(&self, machine: &Identifiers) -> Result<HashSet<String>> {
        let sql = "-- kinds_known
            SELECT i.kind FROM unnest($1::text[], $2::text[]) AS given(kind, value)
              JOIN host_identifiers i ON i.kind = given.kind AND i.value = given.value";
        let (kinds, values): (Vec<&str>, Vec<&String>) = pairs(machine).unzip();
        let params = params![kinds, values];
        let rows = self.0.query(sql, &params).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn host_match_by(
        &self,
        kind: IdentifierKind,
        values: &[String],
        stronger: &[&str],
    ) -> Result<Option<HostMatch>> {
        let sql = "-- host_match
            SELECT h.id, a.id AS incumbent
              FROM host_identifiers i
              JOIN hosts h ON h.id = i.host_id AND h.retired_at IS NULL
              LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
             WHERE i.kind = $1 AND i.value = ANY ($2)
               AND NOT EXISTS (SELECT FROM host_identifiers o WHERE o.host_id = h.id AND o.kind = ANY ($3))
             ORDER BY a.id IS NULL, h.created_at, h.id LIMIT 1";
        let params = params![kind.as_str(), values, stronger];
        let row = self.0.query_opt(sql, &params).await?;
        let read = |row: Row| {
            Ok(HostMatch {
                id: row.try_get("id")?,
                incumbent: row.try_get("incumbent")?,
            })
        };
        row.map(read).transpose()
    }

    /// Whether a host and these identifiers are of one machine. `None` if they have no kind of identifiers in common.
    pub async fn same_machine(&self, host: HostId, machine: &Identifiers) -> Result<Option<bool>> {
        let sql = "-- same_machine\nSELECT same_machine($1, $2)";
        let params = params![host.0, Json(machine)];
        self.0.query_value(sql, &params).await
    }

    pub async fn host_insert(&self, facts: &HostFacts) -> Result<HostId> {
        let sql = "-- host_insert
            INSERT INTO hosts (hostname, os, os_version, arch, kernel_version, mac_addresses, ip_addresses,
                               boot_id, cpu_count, memory_total_bytes)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id";
        let host = self.0.query_value(sql, &fact_params(facts)).await?;
        self.host_identifiers_add(host, &facts.identifiers).await?;
        Ok(host)
    }

    /// Replaces the facts of a host. Identifiers are only added.
    pub async fn host_refresh(&self, host: HostId, facts: &HostFacts) -> Result<()> {
        let sql = "-- host_refresh
            UPDATE hosts
               SET hostname = $1, os = $2, os_version = $3, arch = $4, kernel_version = $5, mac_addresses = $6,
                   ip_addresses = $7, boot_id = $8, cpu_count = $9, memory_total_bytes = $10, facts_at = now()
             WHERE id = $11";
        let mut params = fact_params(facts).to_vec();
        params.extend(params![host.0]);
        self.0.execute(sql, &params).await?;
        self.host_identifiers_add(host, &facts.identifiers).await
    }

    async fn host_identifiers_add(&self, host: HostId, machine: &Identifiers) -> Result<()> {
        let (kinds, values): (Vec<&str>, Vec<&String>) = pairs(machine).unzip();
        let sql = "-- host_identifiers_add
            INSERT INTO host_identifiers (host_id, kind, value)
            SELECT $1, kind, value FROM unnest($2::text[], $3::text[]) AS given(kind, value)
            ON CONFLICT DO NOTHING";
        let params = params![host.0, kinds, values];
        self.0.execute(sql, &params).await.map(drop)
    }

    /// Gives a host the labels of a token.
    pub async fn host_label(&self, host: HostId, token: TokenId) -> Result<()> {
        let sql = "-- host_label\nSELECT host_takes_labels($1, $2)";
        let params = params![host.0, token.0];
        self.0.execute(sql, &params).await.map(drop)
    }
}

fn fact_params(facts: &HostFacts) -> [Param<'_>; 10] {
    params![
        facts.hostname,
        facts.os,
        facts.os_version,
        facts.arch,
        facts.kernel_version,
        facts.mac_addresses,
        facts.ip_addresses,
        facts.boot_id,
        facts.cpu_count,
        facts.memory_total_bytes
    ]
}
