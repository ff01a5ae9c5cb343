//! The privileges of the web application's role, tried over a connection as that role.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use svc_store::WebRole;
use tokio::task::JoinSet;

use crate::{fixtures::*, support::*};

const DENIED: &str = "42501";

/// A host with a pending agent, and one with an active and a pending agent. In statements, `host-1` and `agent-1` are ids.
const SEED: &str = "
    INSERT INTO hosts (id, hostname) VALUES ('host-1', 'web-1'), ('host-2', 'web-2');
    INSERT INTO agents (id, host_id, key, status) VALUES
        ('agent-1', 'host-1', sha256('1'), 'pending'),
        ('agent-2', 'host-2', sha256('2'), 'active'),
        ('agent-3', 'host-2', sha256('3'), 'pending');";

fn with_ids(sql: &str) -> String {
    sql.replace("'host-", "'00000000-0000-4000-8000-00000000000")
        .replace("'agent-", "'a0000000-0000-4000-8000-00000000000")
}

/// The views for readers of all kinds (docs/data-model.md).
const DOCUMENTED: [&str; 6] = [
    "enrolment_token_states",
    "host_overview",
    "host_metrics",
    "host_metrics_hourly",
    "host_metric_parts",
    "host_metric_parts_hourly",
];

/// Creates a role. Roles belong to the whole server, so each test has its own. The name
/// needs quoting.
async fn create_role(store: &TestStore) -> Result<String> {
    let role = format!("web \"app\" {}", store.database_name());
    let sql = format!("CREATE ROLE {} LOGIN", quoted(&role));
    store.sql(&sql).await?;
    Ok(role)
}

fn quoted(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}

fn connected_as(role: &str, store: &TestStore) -> Result<TestStore> {
    let user = role.replace('"', "%22").replace(' ', "%20");
    let url = store.url().replacen("svc@", &format!("{user}@"), 1);
    TestStore::open(&url, 3)
}

/// Grants a new role its privileges, and connects as it.
async fn as_web(store: &TestStore) -> Result<(String, TestStore)> {
    let role = create_role(store).await?;
    assert_eq!(store.web_role_grant(&role).await?, WebRole::Granted);
    let web = connected_as(&role, store)?;
    Ok((role, web))
}

async fn assert_refused(web: &TestStore, sql: &str, code: &str) -> Result<()> {
    let error = web.sql(&with_ids(sql)).await.expect_err(sql);
    assert_eq!(sqlstate(&error)?, code, "{sql}");
    Ok(())
}

/// In a schema that PUBLIC may not use.
#[tokio::test]
async fn the_role_reads_everything_except_the_hashes_of_tokens() -> Result<()> {
    let store = migrated().await?;
    let revoke = "REVOKE USAGE ON SCHEMA public FROM PUBLIC";
    store.sql(revoke).await?;
    let (role, web) = as_web(&store).await?;
    assert_eq!(web.sql("SELECT current_user").await?, role);
    let unreadable = "
        SELECT string_agg(relname || '.' || attname, ', ')
          FROM pg_class c JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm') AND NOT relispartition
           AND NOT has_column_privilege(c.oid, attnum, 'SELECT')";
    let found = web.sql(unreadable).await?;
    assert_eq!(found, "enrolment_tokens.hash", "list it in web_role.rs");
    let count = "SELECT count(id) FROM enrolment_tokens";
    assert_eq!(web.sql(count).await?, "0");
    let states = "SELECT count(*) FROM enrolment_token_states";
    assert_eq!(web.sql(states).await?, "0");
    let hashes = "SELECT hash FROM enrolment_tokens";
    assert_refused(&web, hashes, DENIED).await?;
    assert_refused(&web, "TABLE enrolment_tokens", DENIED).await
}

/// With samples in chunks and in rows, whose values the views compute.
#[tokio::test]
async fn one_grant_is_enough_to_read_every_documented_view() -> Result<()> {
    let (store, agent) = world().await?;
    let samples = [1, 2, 3].map(|seq| sample(seq, hours_ago(3)));
    agent.store(&store, &samples[..2]).await?;
    assert_eq!(compact(&store).await?, 2);
    agent.store(&store, &samples[2..]).await?;
    let token = "SELECT add_enrolment_token(sha256('t'), 'one', 'ann')";
    store.sql(token).await?;
    let role = create_role(&store).await?;
    let (views, role_name) = (DOCUMENTED.join(", "), quoted(&role));
    let grant = format!("GRANT SELECT ON {views} TO {role_name}");
    store.sql(&grant).await?;
    let reader = connected_as(&role, &store)?;
    for view in DOCUMENTED {
        let read = format!("SELECT count(*) > 0 AND bool_and(v::text <> '') FROM {view} v");
        assert_eq!(reader.sql(&read).await.context(view)?, "t", "{view}");
    }
    assert_refused(&reader, "SELECT count(*) FROM agents", DENIED).await
}

#[tokio::test]
async fn the_role_writes_nothing_and_calls_only_decisions_and_what_readers_need() -> Result<()> {
    let store = migrated().await?;
    let (_role, web) = as_web(&store).await?;
    store.sql(&with_ids(SEED)).await?;
    let writable = "
        SELECT string_agg(relname, ', ') FROM pg_class c
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
           AND (has_any_column_privilege(c.oid, 'INSERT, UPDATE, REFERENCES')
                OR has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER'))";
    assert_eq!(web.sql(writable).await?, "");
    let callable = "
        SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc
         WHERE pronamespace = 'public'::regnamespace AND has_function_privilege(oid, 'EXECUTE')
           AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = pg_proc.oid AND d.deptype = 'e')";
    let functions = "add_agent_release add_enrolment_token add_host_note add_people_event agent_seen approve_agent counter_increase disk_parts disks_json enrolment_token_state expire_hosts \
                     host_chunks host_chunks_loose host_samples label_hosts parts_unpack reject_agent remove_settings_rule reopen_agent retire_host \
                     revoke_agent revoke_enrolment_token rollout_place set_rollout set_settings_rule settings_effective settings_members \
                     shape_parts skip_host start_rollout";
    assert_eq!(web.sql(callable).await?, functions);
    for sql in [
        "UPDATE agents SET status = 'active'",
        "DELETE FROM agent_events",
        "INSERT INTO enrolment_tokens (hash, auto_approve) VALUES (sha256('x'), true)",
        "INSERT INTO host_events (host_id, kind, actor, text) SELECT id, 'note', 'ann', 'x' FROM hosts",
        "SELECT decision_begins('ann', 'why')",
        "INSERT INTO people_events (kind) VALUES ('sign-in')",
        "SELECT agent_to_decide('agent-1')",
        "SELECT host_takes_facts(id, '{}') FROM hosts",
        "CREATE TEMP TABLE mine AS TABLE agents;
         CREATE TRIGGER forge AFTER DELETE ON mine FOR EACH ROW EXECUTE FUNCTION agents_record()",
    ] {
        assert_refused(&web, sql, DENIED).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_roles_decisions_are_recorded_with_actor_and_database_user() -> Result<()> {
    let store = migrated().await?;
    let (role, web) = as_web(&store).await?;
    store.sql(&with_ids(SEED)).await?;
    for sql in [
        "SELECT approve_agent('agent-1', 'ann')",
        "SELECT revoke_agent('agent-1', 'ben', 'lost')",
        "SELECT reopen_agent('agent-1', 'ann')",
        "SELECT reject_agent('agent-1', 'ann')",
        "SELECT reopen_agent('agent-1', 'ann')",
        "SELECT approve_agent('agent-1', 'ann')",
        "SELECT approve_agent('agent-3', 'eve', 'new-host')",
        "SELECT retire_host('host-2', 'cy')",
        "SELECT add_enrolment_token(sha256('t'), 'web', 'ann')",
        "SELECT revoke_enrolment_token(id, 'ann', true) FROM enrolment_tokens",
    ] {
        web.sql(&with_ids(sql)).await.context(sql)?;
    }
    let events = "SELECT string_agg(concat_ws(' ', to_status, actor, reason), ', ' ORDER BY id) FROM agent_events
                   WHERE kind = 'status' AND from_status IS NOT NULL AND db_user = session_user";
    assert_eq!(
        web.sql(events).await?,
        "active ann, revoked ben lost, pending ann, rejected ann, pending ann, active ann, active eve, revoked cy host retired",
        "as {role}"
    );
    let token = "SELECT concat_ws(' ', auto_approve, allow_reinstall, max_uses, created_by, revoked_by) FROM enrolment_tokens";
    assert_eq!(web.sql(token).await?, "f f 1 ann ann");
    let record = "SELECT string_agg(concat_ws(' ', kind, subject, 'by', actor), ', ' ORDER BY id) FROM people_events
                   WHERE db_user = session_user";
    let wanted = "token created web by ann, token revoked web by ann";
    assert_eq!(web.sql(record).await?, wanted);
    let refused = "SELECT approve_agent('agent-1', 'ann')";
    assert_refused(&web, refused, "SV409").await
}

/// Nobody who has the console's connection can remove the traces.
#[tokio::test]
async fn the_role_adds_to_the_record_of_people_and_neither_deletes_nor_rewrites_it() -> Result<()> {
    let store = migrated().await?;
    let (role, web) = as_web(&store).await?;
    let add = |outcome: &str, address: &str| {
        format!("SELECT add_people_event('sign-in', 'ann', NULL, '{address}', '{outcome}', '')")
    };
    web.sql(&add("done", "10.0.0.1")).await?;
    for sql in [
        "DELETE FROM people_events",
        "TRUNCATE people_events",
        "UPDATE people_events SET subject = 'ben'",
        "ALTER TABLE people_events DISABLE TRIGGER ALL",
        "DROP TABLE people_events",
    ] {
        assert_refused(&web, sql, DENIED).await?;
    }
    for _ in 0..3 {
        web.sql(&add("refused", "10.0.0.2")).await?;
    }
    let rows = "SELECT string_agg(concat_ws(' ', outcome, host(address), times), ', ' ORDER BY id)
                  FROM people_events WHERE db_user = session_user";
    let wanted = "done 10.0.0.1 1, refused 10.0.0.2 3";
    assert_eq!(web.sql(rows).await?, wanted, "as {role}");
    // From many addresses. The clock's hour may change once meanwhile.
    let flood = "SELECT count(add_people_event('sign-in', '', NULL, '10.1.0.0'::inet + n, 'refused', '')) FROM generate_series(1, 900) n";
    web.sql(flood).await?;
    let bounded = "SELECT count(*) BETWEEN 200 AND 410 AND sum(times) = 904 FROM people_events";
    assert_eq!(web.sql(bounded).await?, "t");
    Ok(())
}

#[tokio::test]
async fn a_role_with_its_privileges_is_left_alone() -> Result<()> {
    let store = migrated().await?;
    let (role, _web) = as_web(&store).await?;
    let version = "SELECT xmin FROM pg_class WHERE oid = 'hosts'::regclass";
    let before = store.sql(version).await?;
    store.web_role_grant(&role).await?;
    assert_eq!(store.sql(version).await?, before, "granted again");
    let later = "ALTER TABLE enrolment_tokens ADD COLUMN later text";
    store.sql(later).await?;
    assert_eq!(store.web_role_check(&role).await?, WebRole::NotGranted);
    Ok(())
}

#[tokio::test]
async fn granting_is_idempotent_and_concurrent_and_needs_an_existing_role() -> Result<()> {
    let store = migrated().await?;
    assert_eq!(store.web_role_grant("nobody").await?, WebRole::Missing);
    assert_eq!(store.web_role_check("public").await?, WebRole::Missing);
    let role = create_role(&store).await?;
    assert_eq!(store.web_role_check(&role).await?, WebRole::NotGranted);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, role) = (TestStore::open(store.url(), 3)?, role.clone());
        tasks.spawn(async move { store.web_role_grant(&role).await });
    }
    while let Some(granted) = tasks.join_next().await {
        assert_eq!(granted??, WebRole::Granted);
    }
    assert_eq!(store.web_role_check(&role).await?, WebRole::Granted);
    Ok(())
}

/// For each operator and function that our functions call, others of the same name, with all
/// combinations of some argument types. Calling one is an error.
const HOSTILE: &str = r"
    CREATE TEMP TABLE called AS SELECT prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace;
    CREATE TEMP TABLE type AS
    SELECT unnest('{text, varchar, uuid, jsonb, integer, bigint, boolean, timestamptz, interval,
                    text[], uuid[], bytea, inet, agents, hosts}'::text[]) AS name;
    CREATE TEMP TABLE hostile AS
    SELECT 1 AS turn, format('hostile(%s, %s)', a.name, b.name) AS object, '' AS operator FROM type a, type b
     UNION
    SELECT 2, format('(FUNCTION = hostile, LEFTARG = %s, RIGHTARG = %s)', a.name, b.name), oprname
      FROM type a, type b, pg_operator, called WHERE position(oprname IN prosrc) > 0
     UNION
    SELECT 3, format('%I(%s)', proname, CASE pronargs WHEN 1 THEN a.name WHEN 2 THEN concat_ws(', ', a.name, b.name)
                                                      ELSE concat_ws(', ', a.name, b.name, c.name) END), ''
      FROM called, regexp_matches(prosrc, '(\w+)\s*\(', 'g') AS found, pg_proc, type a, type b, type c
     WHERE proname = found[1] AND pronargs BETWEEN 1 AND 3 AND c.name IN ('text', 'boolean');
    DO $do$
    DECLARE next record;
    BEGIN
        DELETE FROM hostile WHERE turn = 3 AND to_regprocedure('public.' || object) IS NOT NULL; -- These are ours.
        DELETE FROM hostile USING pg_operator o -- These are an extension's.
         WHERE turn = 2 AND o.oprnamespace = 'public'::regnamespace AND o.oprname = operator
           AND object = format('(FUNCTION = hostile, LEFTARG = %s, RIGHTARG = %s)', o.oprleft::regtype, o.oprright::regtype);
        FOR next IN SELECT * FROM hostile ORDER BY turn LOOP
            IF next.turn = 2 THEN
                EXECUTE format('CREATE OPERATOR public.%s %s', next.operator, next.object);
            ELSE
                EXECUTE format('CREATE FUNCTION public.%s RETURNS text LANGUAGE plpgsql AS %L',
                               next.object, 'BEGIN RAISE EXCEPTION $$hijacked$$; END');
            END IF;
        END LOOP;
    END $do$;
    SELECT count(*) FILTER (WHERE turn = 2) > 1000 AND count(*) FILTER (WHERE turn = 3) > 1000 FROM hostile";

/// Calls of every function with its owner's rights, through each branch.
const DEFINER_CALLS: &[&str] = &[
    "SELECT expire_hosts('1 hour', 'ann')",
    "SELECT label_hosts(ARRAY['host-1']::uuid[], '{\"a\": \"b\"}', ARRAY['c'], 'ann')",
    "SELECT add_host_note('host-1', NULL, 'ann', 'a note')",
    "SELECT add_people_event('sign-in', 'ann', 'ann', '127.0.0.1', 'done', 'a name')",
    "SELECT add_people_event('sign-in', 'ann', NULL, '127.0.0.1', 'refused', 'a name')",
    "SELECT approve_agent('agent-1', 'ann')",
    "SELECT approve_agent('agent-3', 'ann', 'replace', 'why', (SELECT agent_seen(a, 'agent-2'::uuid) FROM agents a WHERE id = 'agent-3'))",
    "SELECT approve_agent('agent-4', 'ann', 'new-host')",
    "SELECT revoke_agent('agent-1', 'ann', 'lost')",
    "SELECT reopen_agent('agent-1', 'ann')",
    "SELECT reject_agent('agent-1', 'ann')",
    "SELECT reopen_agent('agent-1', 'ann')",
    "SELECT retire_host('host-2', 'ann')",
    "SELECT add_enrolment_token(sha256('t'::bytea), 'web', 'ann', labels => '{\"a\": \"b\"}')",
    "SELECT revoke_enrolment_token(id, 'ann', true, 'leaked') FROM enrolment_tokens",
    "SELECT revoke_enrolment_token(id, 'ann', true) FROM enrolment_tokens",
    "SELECT add_agent_release(1, '1.1.0', '{linux/x86_64}', 'm', sha512('s'), 'ann')",
    "SELECT add_agent_release(1, '1.1.0', '{linux/x86_64}', 'm', sha512('s'), 'ann')",
    "SELECT add_agent_release(2, '1.0.0', '{linux/x86_64}', 'n', sha512('s'), 'ann')",
    "SELECT start_rollout(1, '{\"a\": \"b\"}', '{5,100%}', 1800, 'mon-fri 08:00-16:00', NULL, 'ann')",
    "SELECT start_rollout(2, '{}', '{100%}', 0, '', 1, 'ann')",
    "SELECT skip_host(1, 'host-5', 'ann')",
    "SELECT set_rollout(1, 'paused', 'ann', 'lunch')",
    "SELECT set_rollout(1, 'running', 'ann', NULL)",
    r#"SELECT set_settings_rule(NULL, 100, '{"a": "b"}', '{"interval": 10, "left_out": ["pressure"], "log": {"level": "debug", "until": 1},
        "spool_bytes": 1048576, "update": {"on": true, "hours": "mon-fri 08:00-16:00"}}', 10, 'ann', 'why')"#,
    r#"SELECT set_settings_rule(1, 200, '{}', '{"interval": 20}', 100, 'ann', NULL)"#,
    "SELECT remove_settings_rule(1, 'ann', 'over')",
];

#[tokio::test]
async fn objects_of_the_role_are_never_called_with_the_owners_rights() -> Result<()> {
    let store = migrated().await?;
    let (role, web) = as_web(&store).await?;
    store.sql(&with_ids(SEED)).await?;
    let further = format!(
        "INSERT INTO enrolment_tokens (id, hash, labels) VALUES ('b0000000-0000-4000-8000-000000000001', sha256('b'), '{{\"a\": \"b\"}}');
         INSERT INTO agents (id, host_id, key, status, token_id, facts) VALUES ('agent-4', 'host-2', sha256('4'), 'pending',
             'b0000000-0000-4000-8000-000000000001', jsonb_build_object('hostname', 'web-4', 'identifiers', jsonb_build_object('machine', jsonb_build_array('m4'))));
         INSERT INTO hosts (id, hostname) VALUES ('host-5', 'web-5');
         INSERT INTO agents (id, host_id, key, status) VALUES ('agent-5', 'host-5', sha256('5'), 'active');
         UPDATE agent_state SET presence_since = now() - interval '1 day' WHERE agent_id = 'agent-5';
         GRANT CREATE ON SCHEMA public TO {}",
        quoted(&role)
    );
    store.sql(&with_ids(&further)).await?;
    assert_eq!(store.sql(DEFINERS).await?, called(), "add a call of it");
    let loose = "SELECT string_agg(proname, ' ') FROM pg_proc
                  WHERE prosecdef AND pronamespace = 'public'::regnamespace
                    AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, public, pg_temp']";
    assert_eq!(store.sql(loose).await?, "", "without a fixed search_path");
    assert_eq!(web.sql(HOSTILE).await?, "t");
    for sql in DEFINER_CALLS {
        web.sql(&with_ids(sql)).await.context(*sql)?;
    }
    Ok(())
}

/// Every function with its owner's rights that can be called. Triggers run in the calls of others.
const DEFINERS: &str = "
    SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc
     WHERE prosecdef AND prorettype <> 'trigger'::regtype AND pronamespace = 'public'::regnamespace";

/// The names of the functions in [`DEFINER_CALLS`].
fn called() -> String {
    let name = |sql: &&'static str| sql.split_once('(')?.0.strip_prefix("SELECT ");
    let names: BTreeSet<&str> = DEFINER_CALLS.iter().filter_map(name).collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
}
