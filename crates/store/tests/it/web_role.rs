//! The web application's role: what it may do, and what it may not, tried by
//! connecting as it.

use anyhow::{Context, Result};
use svc_sandbox::TestDatabase;
use svc_store::{Bulkhead, Store, StoreError, WebRole};

use crate::support::{batch, migrated, open, options, text};

const DENIED: Option<&str> = Some("42501");

/// A host with an agent that waits, and one with an active agent.
const SEED: &str = "
    INSERT INTO hosts (id, hostname) VALUES ('00000000-0000-4000-8000-000000000001', 'web-1'),
                                            ('00000000-0000-4000-8000-000000000002', 'web-2');
    INSERT INTO agents (id, host_id, key, status) VALUES
        ('a0000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000001', sha256('1'), 'pending'),
        ('a0000000-0000-4000-8000-000000000002', '00000000-0000-4000-8000-000000000002', sha256('2'), 'active'),
        ('a0000000-0000-4000-8000-000000000003', '00000000-0000-4000-8000-000000000002', sha256('3'), 'pending');";

/// Roles belong to the whole server, so each test has one of its own, with a name that must be quoted.
async fn role_of(database: &TestDatabase, store: &Store) -> Result<String> {
    let role = format!("web \"app\" {}", database.name());
    let quoted = role.replace('"', "\"\"");
    batch(store, &format!("CREATE ROLE \"{quoted}\" LOGIN")).await?;
    Ok(role)
}

/// A store that connects as the granted role.
async fn as_web(database: &TestDatabase, store: &Store) -> Result<(String, Store)> {
    let role = role_of(database, store).await?;
    assert_eq!(store.web_role_grant(&role).await?, WebRole::Granted);
    let user = role.replace('"', "%22").replace(' ', "%20");
    let url = database.url().replacen("svc@", &format!("{user}@"), 1);
    Ok((role, open(&url, options(3))?))
}

async fn refusal(web: &Store, sql: &str) -> Result<StoreError> {
    let outcome = web.run("test", Bulkhead::Auth, async |tx| tx.batch(sql).await);
    outcome
        .await
        .err()
        .with_context(|| format!("allowed: {sql}"))
}

#[tokio::test]
async fn it_reads_everything_but_the_hashes_of_tokens() -> Result<()> {
    let (database, store) = migrated().await?;
    let (role, web) = as_web(&database, &store).await?;
    assert_eq!(text(&web, "SELECT current_user").await?, role);
    let unreadable = "
        SELECT string_agg(relname || '.' || attname, ', ')
          FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm') AND NOT relispartition
           AND NOT has_column_privilege(c.oid, attnum, 'SELECT')";
    let secret = "enrolment_tokens.hash";
    assert_eq!(
        text(&web, unreadable).await?,
        secret,
        "list it in web_role.rs"
    );
    let count = "SELECT count(id)::text FROM enrolment_tokens";
    assert_eq!(text(&web, count).await?, "0");
    text(&web, "SELECT count(*)::text FROM enrolment_token_states").await?;
    for sql in [
        "SELECT hash FROM enrolment_tokens",
        "TABLE enrolment_tokens",
    ] {
        assert_eq!(refusal(&web, sql).await?.sqlstate(), DENIED, "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn it_writes_nothing_and_calls_only_the_decisions() -> Result<()> {
    let (database, store) = migrated().await?;
    let (_role, web) = as_web(&database, &store).await?;
    batch(&store, SEED).await?;
    let writable = "
        SELECT string_agg(relname, ', ') FROM pg_class c
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
           AND (has_any_column_privilege(c.oid, 'INSERT, UPDATE, REFERENCES')
                OR has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER'))";
    assert_eq!(text(&web, writable).await?, "");
    let callable = "
        SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc
         WHERE pronamespace = 'public'::regnamespace AND has_function_privilege(oid, 'EXECUTE')";
    let decisions = "add_enrolment_token approve_agent reject_agent reopen_agent retire_host \
                     revoke_agent revoke_enrolment_token";
    assert_eq!(text(&web, callable).await?, decisions);
    for sql in [
        "UPDATE agents SET status = 'active'",
        "DELETE FROM agent_events",
        "INSERT INTO enrolment_tokens (hash, auto_approve) VALUES (sha256('x'), true)",
        "SELECT decision_begins('ann', 'why')",
        "SELECT agent_to_decide('a0000000-0000-4000-8000-000000000001')",
        "SELECT host_for_clone(a) FROM agents a",
        "CREATE TEMP TABLE mine AS TABLE agents;
         CREATE TRIGGER forge AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION agents_record()",
    ] {
        assert_eq!(refusal(&web, sql).await?.sqlstate(), DENIED, "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn its_decisions_work_and_are_recorded_under_both_names() -> Result<()> {
    let (database, store) = migrated().await?;
    let (role, web) = as_web(&database, &store).await?;
    batch(&store, SEED).await?;
    for sql in [
        "SELECT approve_agent('a0000000-0000-4000-8000-000000000001', 'ann')",
        "SELECT revoke_agent('a0000000-0000-4000-8000-000000000001', 'ben', 'lost')",
        "SELECT reopen_agent('a0000000-0000-4000-8000-000000000001', 'ann')",
        "SELECT reject_agent('a0000000-0000-4000-8000-000000000001', 'ann')",
        "SELECT reopen_agent('a0000000-0000-4000-8000-000000000001', 'ann')",
        "SELECT approve_agent('a0000000-0000-4000-8000-000000000001', 'ann')",
        "SELECT approve_agent('a0000000-0000-4000-8000-000000000003', 'eve', 'new-host')",
        "SELECT retire_host('00000000-0000-4000-8000-000000000002', 'cy')",
        "SELECT add_enrolment_token(sha256('t'), 'web', 'ann')",
        "SELECT revoke_enrolment_token(id, 'ann', true) FROM enrolment_tokens",
    ] {
        batch(&web, sql).await.context(sql)?;
    }
    let events = "SELECT string_agg(concat_ws(' ', to_status, actor, reason), ', ' ORDER BY id) FROM agent_events
                   WHERE kind = 'status' AND from_status IS NOT NULL AND db_user = session_user";
    assert_eq!(
        text(&web, events).await?,
        "active ann, revoked ben lost, pending ann, rejected ann, pending ann, active ann, active eve, revoked cy host retired",
        "as {role}"
    );
    let token = "SELECT concat_ws(' ', auto_approve, allow_reinstall, max_uses, created_by, revoked_by) FROM enrolment_tokens";
    assert_eq!(text(&web, token).await?, "f f 1 ann ann");
    let refused = "SELECT approve_agent('a0000000-0000-4000-8000-000000000001', 'ann')";
    let refused = refusal(&web, refused).await?;
    assert_eq!(refused.sqlstate(), Some("SV409"));
    Ok(())
}

#[tokio::test]
async fn granting_is_repeatable_by_many_at_once_and_needs_an_existing_role() -> Result<()> {
    let (database, store) = migrated().await?;
    assert_eq!(store.web_role_grant("nobody").await?, WebRole::Missing);
    assert_eq!(store.web_role_check("public").await?, WebRole::Missing);
    let role = role_of(&database, &store).await?;
    assert_eq!(store.web_role_check(&role).await?, WebRole::NotGranted);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, role) = (open(database.url(), options(3))?, role.clone());
        tasks.spawn(async move { store.web_role_grant(&role).await });
    }
    while let Some(granted) = tasks.join_next().await {
        assert_eq!(granted??, WebRole::Granted);
    }
    assert_eq!(store.web_role_check(&role).await?, WebRole::Granted);
    Ok(())
}

#[tokio::test]
async fn a_schema_that_public_may_not_use_is_opened_to_the_role() -> Result<()> {
    let (database, store) = migrated().await?;
    batch(&store, "REVOKE USAGE ON SCHEMA public FROM PUBLIC").await?;
    let (_role, web) = as_web(&database, &store).await?;
    assert_eq!(text(&web, "SELECT count(*)::text FROM agents").await?, "0");
    Ok(())
}
