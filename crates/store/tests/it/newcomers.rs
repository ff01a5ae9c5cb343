//! Newcomers: a batch registers what is obviously new, and leaves everything else alone.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use svc_store::{AgentFacts, AgentStatus, HostFacts, IdentifierKind, Newcomer};
use tokio::time::timeout;

use crate::support::*;

fn hash(text: &str) -> [u8; 32] {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().try_into().expect("32 bytes")
}

/// What a client asks with.
struct Client {
    key: [u8; 32],
    token: [u8; 32],
    facts: HostFacts,
    agent: AgentFacts,
}

impl Client {
    fn new(key: &str, machine: &str, token: &str) -> Client {
        Client::with_networks(key, machine, token, 2)
    }

    fn with_networks(key: &str, machine: &str, token: &str, networks: usize) -> Client {
        let networks = (1..=networks).map(|network| format!("{machine}/{network}"));
        let identifiers = [
            (IdentifierKind::Machine, vec![machine.to_owned()]),
            (IdentifierKind::Network, networks.collect()),
        ];
        Client {
            key: hash(key),
            token: hash(token),
            facts: HostFacts {
                hostname: machine.to_owned(),
                ip_addresses: vec!["10.0.0.1".to_owned()],
                cpu_count: 4,
                identifiers: identifiers.into(),
                ..HostFacts::default()
            },
            agent: AgentFacts {
                version: "1.2".to_owned(),
                capabilities: vec!["drain".to_owned()],
            },
        }
    }
}

/// The statuses of those that were registered, in order.
async fn admit(store: &TestStore, clients: &[Client]) -> Result<Vec<Option<AgentStatus>>> {
    let newcomers = clients.iter().map(|client| Newcomer {
        key: &client.key,
        token: &client.token,
        facts: &client.facts,
        agent: &client.agent,
        address: Ipv4Addr::LOCALHOST.into(),
    });
    let newcomers: Vec<Newcomer<'_>> = newcomers.collect();
    let admitted = store.registrations_admit(&newcomers).await?;
    let admitted = admitted.iter().map(|one| one.map(|one| one.status));
    Ok(admitted.collect())
}

const TOKENS: &str =
    "INSERT INTO enrolment_tokens (hash, auto_approve, max_uses, labels, expires_at, revoked_at) VALUES
        (sha256('auto'), true, 100, '{\"env\": \"prod\"}', NULL, NULL),
        (sha256('manual'), false, 100, '{}', NULL, NULL),
        (sha256('two'), true, 2, '{}', NULL, NULL),
        (sha256('expired'), true, 100, '{}', now() - interval '1 s', NULL),
        (sha256('revoked'), true, 100, '{}', NULL, now())";

#[tokio::test]
async fn a_batch_registers_new_keys_on_unknown_machines() -> Result<()> {
    use AgentStatus::{Active, Pending};
    let store = migrated().await?;
    store.sql(TOKENS).await?;
    let batch = [
        Client::new("k1", "m1", "auto"),
        Client::new("k2", "m2", "manual"),
        Client::new("k3", "m3", "auto"),
    ];
    let admitted = admit(&store, &batch).await?;
    assert_eq!(admitted, [Some(Active), Some(Pending), Some(Active)]);
    let rows = "SELECT h.hostname, h.cpu_count, h.ip_addresses, h.labels, a.status, a.pending_reason, a.version, a.capabilities,
                       a.decided_by = 'token ' || t.id, a.decided_at IS NOT NULL, a.facts ->> 'hostname', s.presence,
                       (SELECT string_agg(kind || '=' || value, ' ' ORDER BY kind, value) FROM host_identifiers WHERE host_id = h.id),
                       (SELECT string_agg(to_status, ' ') FROM agent_events e WHERE e.agent_id = a.id)
                  FROM agents a JOIN hosts h ON h.id = a.host_id JOIN agent_state s ON s.agent_id = a.id
                  JOIN enrolment_tokens t ON t.id = a.token_id
                 WHERE a.key IN (sha256('k1'), sha256('k2')) ORDER BY h.hostname";
    assert_eq!(
        store.sql(rows).await?,
        "m1|4|{10.0.0.1}|{\"env\": \"prod\"}|active||1.2|{drain}|t|t|m1|offline|machine=m1 network=m1/1 network=m1/2|active\n\
         m2|4|{10.0.0.1}|{}|pending|approval|1.2|{drain}||f|m2|offline|machine=m2 network=m2/1 network=m2/2|pending"
    );
    let uses = "SELECT uses, (SELECT count(*) FROM enrolment_token_uses u WHERE u.token_id = t.id), last_used_at IS NOT NULL
                  FROM enrolment_tokens t ORDER BY uses DESC LIMIT 3";
    assert_eq!(store.sql(uses).await?, "2|2|t\n1|1|t\n0|0|f");
    Ok(())
}

#[tokio::test]
async fn a_batch_leaves_out_what_needs_a_closer_look_and_changes_nothing_for_it() -> Result<()> {
    let store = migrated().await?;
    store.sql(TOKENS).await?;
    let known = Client::new("known", "known", "auto");
    ensure!(admit(&store, &[known]).await?[0].is_some());
    let came_back = "INSERT INTO enrolment_token_uses (token_id, key)
        SELECT id, sha256('came back') FROM enrolment_tokens WHERE hash = sha256('auto')";
    store.sql(came_back).await?;
    let batch = [
        ("known", "m1", "auto", false),
        ("k2", "known", "auto", false),
        ("k3", "m3", "expired", false),
        ("k4", "m4", "revoked", false),
        ("k5", "m5", "no such token", false),
        ("came back", "m6", "auto", false),
        ("k7", "m7", "auto", true),
        ("k7", "m8", "auto", false),
        ("k9", "m7", "auto", false),
        ("k10", "m10", "two", true),
        ("k11", "m11", "two", true),
        ("k12", "m12", "two", false),
    ];
    let clients = batch.map(|(key, machine, token, _)| Client::new(key, machine, token));
    let admitted = admit(&store, &clients).await?;
    for ((key, machine, token, expected), found) in batch.iter().zip(admitted) {
        ensure!(found.is_some() == *expected, "{key} {machine} {token}");
    }
    let state = "SELECT (SELECT string_agg(hostname, ' ' ORDER BY hostname) FROM hosts), (SELECT count(*) FROM agents),
                        (SELECT string_agg(uses::text, ' ' ORDER BY max_uses, uses) FROM enrolment_tokens WHERE uses > 0)";
    assert_eq!(store.sql(state).await?, "known m10 m11 m7|4|2 2");
    Ok(())
}

#[tokio::test]
async fn a_registration_in_progress_does_not_delay_a_batch() -> Result<()> {
    let store = migrated().await?;
    store.sql(TOKENS).await?;
    let (busy, free) = (
        Client::new("k1", "m1", "auto"),
        Client::new("k2", "m2", "auto"),
    );
    let waits = store.registration_run("slow", async |tx| {
        tx.registration_lock(&[&busy.key], &busy.facts.identifiers)
            .await?;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok(())
    });
    let locked = "SELECT count(*) > 0 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                   WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    let batch = async {
        while store.sql(locked).await? != "t" {}
        admit(&store, &[Client::new("k1", "m1", "auto"), free]).await
    };
    tokio::select! {
        outcome = waits => anyhow::bail!("{outcome:?}"),
        admitted = timeout(PATIENCE, batch) => {
            assert_eq!(admitted??, [None, Some(AgentStatus::Active)]);
        }
    }
    Ok(())
}

/// The server's table of locks has room for a few thousand in all.
#[tokio::test]
async fn a_batch_of_machines_with_many_identifiers_takes_a_bounded_number_of_locks() -> Result<()> {
    const NETWORKS: usize = 64;
    const MOST_LOCKS: usize = 1024;
    let store = migrated().await?;
    store.sql(TOKENS).await?;
    let client = |number| {
        let machine = format!("m{number}");
        Client::with_networks(&machine, &machine, "auto", NETWORKS)
    };
    let batch: Vec<Client> = (0..40).map(client).collect();
    let admitted = admit(&store, &batch).await?;
    let admitted = admitted.iter().filter(|status| status.is_some()).count();
    assert_eq!(admitted, MOST_LOCKS / (NETWORKS + 2)); // Key and machine id.
    Ok(())
}
