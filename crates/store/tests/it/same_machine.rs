//! Whether two sets of identifiers belong to one machine: the SQL function and the search for a host follow one rule.

use anyhow::{Result, ensure};
use proptest::prelude::*;
use svc_store::{IdentifierKind, Identifiers};
use uuid::Uuid;

use crate::support::*;

/// A host record. The order of creation is the order of `created`, then of the id.
#[derive(Clone, Debug)]
struct Host {
    id: Uuid,
    identifiers: Identifiers,
    created: u8,
    retired: bool,
    has_agent: bool,
}

/// Any subset of the four kinds. Few values, so that machines share them; one is empty.
fn any_identifiers(values: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Identifiers> {
    let values = prop::collection::btree_set("(|a|b|c)", values);
    let kind = prop::sample::select(&IdentifierKind::ALL[..]);
    prop::collection::btree_map(kind, values, 0..=4).prop_map(|kinds| {
        let kinds = kinds.into_iter();
        kinds
            .map(|(kind, values)| (kind, values.into_iter().collect()))
            .collect()
    })
}

prop_compose! {
    fn any_host()(
        id in any::<u64>(),
        identifiers in any_identifiers(1..=2),
        created in 0..3_u8,
        retired in prop::bool::weighted(0.2),
        has_agent: bool,
    ) -> Host {
        Host { id: Uuid::from_u64_pair(id, 0), identifiers, created, retired, has_agent }
    }
}

prop_compose! {
    /// Hosts with distinct ids.
    fn any_hosts()(mut hosts in prop::collection::vec(any_host(), 0..4)) -> Vec<Host> {
        for (host, n) in hosts.iter_mut().zip(0..) {
            host.id = Uuid::from_u64_pair(host.id.as_u64_pair().0, n);
        }
        hosts
    }
}

impl Host {
    fn insert(&self) -> String {
        let id = self.id;
        let mut sql = format!(
            "INSERT INTO hosts (id, hostname, created_at) VALUES ('{id}', 'web', to_timestamp({}));",
            self.created
        );
        for (kind, values) in &self.identifiers {
            for value in values {
                let row = format!("('{id}', '{}', '{value}')", kind.as_str());
                sql +=
                    &format!("INSERT INTO host_identifiers (host_id, kind, value) VALUES {row};");
            }
        }
        if self.has_agent {
            let row = format!("('{id}', sha256('{id}'), 'active')");
            sql += &format!("INSERT INTO agents (host_id, key, status) VALUES {row};");
        }
        if self.retired {
            sql += &format!("UPDATE hosts SET retired_at = now() WHERE id = '{id}';");
        }
        sql
    }
}

/// The rule, written a second time: the strongest kind that both have decides.
fn same_machine(one: &Identifiers, other: &Identifiers) -> Option<bool> {
    let common = |kind: &IdentifierKind| other.contains_key(kind);
    let deciding = one.keys().copied().filter(common).min()?;
    Some(
        one[&deciding]
            .iter()
            .any(|value| other[&deciding].contains(value)),
    )
}

/// The best match by the documented order: the strongest deciding kind, then a host with an
/// active agent, then the oldest.
fn expected_match(hosts: &[Host], machine: &Identifiers) -> Option<Uuid> {
    let deciding = |host: &Host| {
        let common = |kind: &IdentifierKind| machine.contains_key(kind);
        host.identifiers.keys().copied().filter(common).min()
    };
    let same = |host: &&Host| same_machine(&host.identifiers, machine) == Some(true);
    let candidates = hosts.iter().filter(|host| !host.retired).filter(same);
    let order = |host: &&Host| (deciding(host), !host.has_agent, host.created, host.id);
    candidates.min_by_key(order).map(|host| host.id)
}

async fn check(store: &TestStore, hosts: &[Host], machine: &Identifiers) -> Result<()> {
    let mut sql = "DELETE FROM agents; DELETE FROM hosts;".to_owned();
    sql.extend(hosts.iter().map(Host::insert));
    store.sql(&sql).await?;
    let json = serde_json::to_string(machine)?;
    for host in hosts {
        let sql = format!("SELECT same_machine('{}', '{json}')", host.id);
        let in_sql = store.sql(&sql).await?;
        let in_rust = match same_machine(&host.identifiers, machine) {
            None => "",
            Some(true) => "t",
            Some(false) => "f",
        };
        ensure!(in_sql == in_rust, "{}: SQL says {in_sql:?}", host.id);
    }
    let found = store.registration_run("match", async |tx| tx.host_match(machine).await);
    let found = found.await?.map(|host| host.id.0);
    let expected = expected_match(hosts, machine);
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_and_the_host_lookup_agree_on_what_is_the_same_machine() -> Result<()> {
    let store = migrated().await?;
    // The rule holds for any hosts, also for some that could not come to share identifiers any more.
    let unlimited = "ALTER TABLE host_identifiers DISABLE TRIGGER host_identifiers_limit";
    store.sql(unlimited).await?;
    let check = async move |(hosts, machine): (Vec<Host>, Identifiers)| {
        check(&store, &hosts, &machine).await
    };
    property(256, (any_hosts(), any_identifiers(0..=2)), check).await
}
