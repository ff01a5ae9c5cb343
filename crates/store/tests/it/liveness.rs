//! When an identity that another machine presents is in use: the rule of `agent_liveness`.

use anyhow::{Result, ensure};

use crate::support::*;

const LIVE: &str = "00000000-0000-4000-8000-000000000001";
const LAPSED: &str = "00000000-0000-4000-8000-000000000002";
const STOPPED: &str = "00000000-0000-4000-8000-000000000003";

/// An agent that connected an hour ago, and three instances.
async fn seeded() -> Result<TestStore> {
    let store = migrated().await?;
    let seed = format!(
        "INSERT INTO ingest_instances (id, kid, hostname, version, grpc_address, http_address, expires_at, stopped_at)
         VALUES ('{LIVE}', 'k', 'live', '', '', '', now() + interval '1 hour', NULL),
                ('{LAPSED}', 'k', 'lapsed', '', '', '', now() - interval '1 second', NULL),
                ('{STOPPED}', 'k', 'stopped', '', '', '', now() + interval '1 hour', now());
         INSERT INTO hosts (id, hostname) VALUES (gen_random_uuid(), 'web-1');
         INSERT INTO host_identifiers SELECT id, 'hardware', 'a' FROM hosts;
         INSERT INTO agents (host_id, key, status) SELECT id, sha256('k'), 'active' FROM hosts"
    );
    store.sql(&seed).await?;
    Ok(store)
}

#[tokio::test]
async fn an_identity_is_in_use_only_if_a_live_instance_hears_it() -> Result<()> {
    let store = seeded().await?;
    let online = format!("presence = 'online', instance_id = '{LIVE}'");
    let seconds = |ago: i32| format!("now() - interval '{ago} seconds'");
    let connected = |ago| format!("{online}, connected_at = {}", seconds(ago));
    let heard = |ago, contested, heard| {
        let [contested, heard] = [contested, heard].map(seconds);
        let connected = connected(ago);
        format!("{connected}, contested_at = {contested}, heard_at = {heard}")
    };
    let just_now = format!("connected_at = {}", seconds(1));
    let on = |instance| format!("presence = 'online', instance_id = '{instance}', {just_now}");
    for (expected, change) in [
        ("offline", format!("presence = 'offline', {just_now}")),
        ("presumed", format!("presence = 'online', {just_now}")),
        ("presumed", on(LAPSED)),
        ("presumed", on(STOPPED)),
        ("heard", on(LIVE)),
        ("presumed", connected(40)),
        ("heard", heard(3600, 20, 10)),
        // Before the other machine came.
        ("presumed", heard(3600, 10, 20)),
        // Longer ago than an interval.
        ("presumed", heard(3600, 60, 40)),
        // In the future: the clock was set back.
        ("presumed", connected(-3600)),
        ("presumed", heard(7200, 20, -3600)),
        ("presumed", heard(7200, -3600, 10)),
    ] {
        let sql = format!(
            "UPDATE agent_state SET instance_id = NULL, connected_at = NULL, contested_at = NULL, heard_at = NULL;
             UPDATE agent_state SET {change};
             SELECT agent_liveness(s, 35) FROM agent_state s"
        );
        let found = store.sql(&sql).await?;
        ensure!(found == expected, "{found}, not {expected}: {change}");
    }
    Ok(())
}

/// Requested and valid until so many seconds from now, with a session that was opened so many seconds from now.
async fn verdict(store: &TestStore, [requested, valid, connected]: [i32; 3]) -> Result<String> {
    let open = format!(
        "UPDATE agent_state SET connected_at = now() + interval '{connected} seconds';
         SELECT verdict FROM sessions_open_heard('{LIVE}', (
            SELECT jsonb_agg(jsonb_build_object('agent_id', id, 'key', encode(key, 'hex'), 'boot_id', 'b', 'run_id', 'r',
                   'version', '', 'capabilities', '[]'::jsonb, 'facts', '{{\"identifiers\": {{\"hardware\": [\"a\"]}}}}'::jsonb,
                   'requested_at', now() + interval '{requested} seconds', 'valid_until', now() + interval '{valid} seconds'))
              FROM agents), 35)"
    );
    store.sql(&open).await
}

#[tokio::test]
async fn a_request_is_void_after_a_newer_session_and_after_a_step_back_but_not_for_a_session_of_the_future()
-> Result<()> {
    let store = seeded().await?;
    for (expected, times) in [
        ("open", [-60, 60, -3600]),
        // Its time has passed.
        ("late", [-60, -1, -3600]),
        // A session was opened since.
        ("late", [-60, 60, -30]),
        // That session was opened before the clock was set back.
        ("open", [-60, 60, 3600]),
        // This request was dated before the clock was set back.
        ("late", [3600, 3660, -30]),
        ("late", [3600, 3660, 3500]),
    ] {
        let found = verdict(&store, times).await?;
        ensure!(found == expected, "{found}, not {expected}: {times:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_copy_is_recorded_though_the_last_record_is_in_the_future() -> Result<()> {
    let store = seeded().await?;
    for (seen, expected) in [("1 minute", "0"), ("-1 hour", "1"), ("11 minutes", "2")] {
        let sql = format!(
            "UPDATE agent_state SET clone_seen_at = now() - interval '{seen}';
             SELECT FROM agent_state s, session_clone_seen(s, 'seen', NULL);
             SELECT count(*) FROM agent_events WHERE kind = 'clone'"
        );
        let events = store.sql(&sql).await?;
        ensure!(events.trim() == expected, "{seen}: {events}");
    }
    Ok(())
}
