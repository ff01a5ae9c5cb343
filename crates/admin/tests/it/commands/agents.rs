//! `svc-ingest agent`.

use anyhow::Result;
use svc_testkit::{Site, assert_contains};

use super::{
    active_agent, agent, conflict, conflicting_agent, failure_of, id, json, members, output_of, run,
};

const STATUSES: &str = "SELECT string_agg(status, ' ' ORDER BY id) FROM agents";

#[tokio::test]
async fn agents_are_listed_with_their_columns_and_filtered() -> Result<()> {
    let site = Site::new().await?;
    active_agent(&site, '1', "web-1", r#"{"site": "berlin", "env": "prod"}"#).await?;
    agent(&site, '2', "web-2", r#"{"site": "oslo"}"#).await?;
    let list = json(&site, &["agent", "list"]).await?;
    assert_eq!(members(&list, "status"), ["pending", "active"]);
    assert_eq!(members(&list, "presence"), ["offline", "offline"]);
    let waiting = &list[0];
    assert_eq!(waiting["id"], id('a', '2'));
    assert_eq!(waiting["pending_reason"], "approval");
    assert_eq!(waiting["key"].as_str().map(str::len), Some(64));
    let key = site.psql("SELECT encode(sha256('2'), 'hex')").await?;
    assert_eq!(waiting["key"], key);
    let table = output_of(&site, &["agent", "list"]).await?;
    assert!(
        table.contains(&key[..16]) && !table.contains(&key[..17]),
        "{table}"
    );
    for (filter, hosts) in [
        (&["--status", "active"][..], &["web-1"][..]),
        (&["--status", "revoked"], &[]),
        (&["--label", "site=oslo"], &["web-2"]),
        (&["--label", "site=berlin,env=prod"], &["web-1"]),
        (&["--label", "site=oslo", "--label", "env=prod"], &[]),
        (&["--hostname", "web-2"], &["web-2"]),
    ] {
        let list = json(&site, &[&["agent", "list"], filter].concat()).await?;
        assert_eq!(members(&list, "hostname"), hosts, "{filter:?}");
    }
    run(&site, 2, &["agent", "list", "--status", "asleep"]).await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_is_found_by_id_key_or_host_and_an_ambiguous_name_is_refused() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "twin", "{}").await?;
    let other = id('c', '1');
    site.psql(&format!(
        "INSERT INTO agents (id, host_id, key, status, facts)
         SELECT '{other}', host_id, sha256('3'), 'pending', facts FROM agents WHERE id::text LIKE '2222%'"
    ))
    .await?;
    let key = site.psql("SELECT encode(sha256('1'), 'hex')").await?;
    for name in [&one, "1111a", "1111A", &key, &key[..8], "web-1"] {
        let shown = json(&site, &["agent", "show", name]).await?;
        assert_eq!(shown["id"], one.as_str(), "{name}");
    }
    for name in ["1111", "twin"] {
        let several = failure_of(&site, 1, &["agent", "show", name]).await?;
        assert_contains(&several, "fits several agents");
        assert_contains(&several, &other);
    }
    for name in ["111", &key[..7], "web", "", "%", "1111a%"] {
        let unknown = failure_of(&site, 1, &["agent", "show", name]).await?;
        assert_contains(&unknown, "svc-ingest agent list");
    }
    Ok(())
}

#[tokio::test]
async fn decisions_are_recorded_with_actor_and_reason() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    let approve = ["agent", "approve", &one];
    let by_ben = ["--actor", "ben", "--reason", "seen it"];
    output_of(&site, &[&approve[..], &by_ben].concat()).await?;
    output_of(&site, &["agent", "revoke", &one]).await?;
    output_of(&site, &["agent", "reopen", &one]).await?;
    output_of(&site, &["agent", "reject", &one, "--reason", "not ours"]).await?;
    let shown = json(&site, &["agent", "show", &one]).await?;
    let events =
        ["to_status", "actor", "reason", "db_user"].map(|member| members(&shown["events"], member));
    assert_eq!(
        events[0],
        ["pending", "active", "revoked", "pending", "rejected"]
    );
    assert_eq!(events[1], ["null", "ben", "ann", "ann", "ann"]);
    assert_eq!(
        events[2],
        ["approval", "seen it", "null", "null", "not ours"]
    );
    assert_eq!(events[3], ["svc"; 5]);
    assert_eq!(shown["facts"]["hostname"], "web-1");
    let table = output_of(&site, &["agent", "show", &one]).await?;
    let key = site.psql("SELECT encode(sha256('1'), 'hex')").await?;
    assert_contains(&table, &key);
    assert_contains(&table, "active -> revoked");
    Ok(())
}

#[tokio::test]
async fn an_impossible_decision_names_the_possible_one() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    for (possible, impossible, advice) in [
        (None, "revoke", "reject it instead"),
        (Some("approve"), "approve", "is active, not pending"),
        (None, "reject", "revoke it instead"),
        (Some("revoke"), "approve", "reopen it first"),
    ] {
        if let Some(possible) = possible {
            output_of(&site, &["agent", possible, &one]).await?;
        }
        let wrong = failure_of(&site, 1, &["agent", impossible, &one]).await?;
        assert_contains(&wrong, advice);
    }
    Ok(())
}

#[tokio::test]
async fn each_of_several_agents_has_its_outcome_and_one_failure_is_exit_code_1() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "web-2", "{}").await?;
    let approve = ["agent", "approve", &one, "nobody", "web-2"];
    let ended = run(&site, 1, &[&approve[..], &["--output", "json"]].concat()).await?;
    let outcomes: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    assert_eq!(members(&outcomes, "status"), ["active", "null", "active"]);
    assert_eq!(members(&outcomes, "name"), approve[2..]);
    assert_contains(&members(&outcomes, "error")[1], "no agent");
    site.expect(STATUSES, "active active").await?;
    let ended = run(&site, 1, &["agent", "revoke", "nobody", "web-2"]).await?;
    assert_contains(&ended.stdout, "revoked 2222a000 on web-2");
    assert_contains(&ended.stderr, "no agent is called \"nobody\"");
    Ok(())
}

#[tokio::test]
async fn all_pending_needs_yes_and_respects_the_label() -> Result<()> {
    let site = Site::new().await?;
    agent(&site, '1', "web-1", r#"{"site": "berlin"}"#).await?;
    agent(&site, '2', "web-2", r#"{"site": "oslo"}"#).await?;
    agent(&site, '3', "web-3", r#"{"site": "oslo"}"#).await?;
    for verb in ["approve", "reject"] {
        let refused = failure_of(&site, 2, &["agent", verb, "--all-pending"]).await?;
        assert_contains(&refused, "--yes");
    }
    site.expect(STATUSES, "pending pending pending").await?;
    let all_pending = ["agent", "approve", "--all-pending", "--yes"];
    let in_oslo = [&all_pending[..], &["--label", "site=oslo"]].concat();
    output_of(&site, &in_oslo).await?;
    site.expect(STATUSES, "pending active active").await?;
    output_of(&site, &["agent", "reject", "--all-pending", "--yes"]).await?;
    site.expect(STATUSES, "rejected active active").await?;
    let nothing = json(&site, &all_pending).await?;
    assert_eq!(nothing, serde_json::json!([]));
    for wrong in [
        &["agent", "approve"][..],
        &["agent", "approve", "x", "--all-pending"],
        &["agent", "approve", "x", "--label", "a=b"],
        &["agent", "approve", "--all-pending", "--replace", "--yes"],
        &["agent", "approve", "x", "--replace", "--new-host"],
        &["agent", "revoke"],
    ] {
        run(&site, 2, wrong).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_conflict_needs_an_explicit_choice_and_all_pending_skips_it() -> Result<()> {
    let site = Site::new().await?;
    let (old, new) = conflict(&site).await?;
    agent(&site, '3', "web-3", "{}").await?;
    let refused = failure_of(&site, 1, &["agent", "approve", &new]).await?;
    for part in ["--replace", "--new-host", &old] {
        assert_contains(&refused, part);
    }
    run(&site, 1, &["agent", "approve", "--all-pending", "--yes"]).await?;
    site.expect(STATUSES, "active pending active").await?;
    let table = output_of(&site, &["agent", "list"]).await?;
    assert_contains(&table, "conflict with 1111a000");
    let table = output_of(&site, &["agent", "show", &new]).await?;
    assert_contains(&table, &old);
    assert_contains(&table, "--new-host");
    Ok(())
}

#[tokio::test]
async fn replacing_keeps_the_host_and_revokes_the_old_agent() -> Result<()> {
    let site = Site::new().await?;
    let (old, new) = conflict(&site).await?;
    let outcome = json(&site, &["agent", "approve", &new, "--replace"]).await?;
    assert_eq!(outcome[0]["host_id"], id('b', '1'));
    site.expect(STATUSES, "revoked active").await?;
    site.expect("SELECT count(*) FROM hosts", "1").await?;
    let why = format!("SELECT decided_by, decision_reason FROM agents WHERE id = '{old}'");
    site.expect(&why, &format!("ann|superseded by {new}")).await
}

#[tokio::test]
async fn approval_as_a_new_host_leaves_the_old_agent_active() -> Result<()> {
    let site = Site::new().await?;
    let old = active_agent(&site, '1', "web-1", r#"{"site": "oslo"}"#).await?;
    let new = conflicting_agent(&site, '2', &old).await?;
    let outcome = json(&site, &["agent", "approve", &new, "--new-host"]).await?;
    assert_ne!(outcome[0]["host_id"], id('b', '1'));
    site.expect(STATUSES, "active active").await?;
    let hosts = "SELECT count(*), count(DISTINCT hostname), count(DISTINCT labels) FROM hosts";
    site.expect(hosts, "2|1|1").await?;
    let known = "SELECT count(DISTINCT host_id), count(DISTINCT value) FROM host_identifiers";
    site.expect(known, "2|1").await
}

#[tokio::test]
async fn a_clone_is_listed_with_its_origin_and_with_its_own_name() -> Result<()> {
    let site = Site::new().await?;
    let origin = agent(&site, '1', "web-1", "{}").await?;
    let clone = conflicting_agent(&site, '2', &origin).await?;
    site.psql(&format!(
        "UPDATE agents SET pending_reason = 'clone', conflict_with = NULL, cloned_from = '{origin}',
                           facts = facts || '{{\"hostname\": \"copy\"}}' WHERE id = '{clone}'"
    ))
    .await?;
    let list = json(&site, &["agent", "list", "--hostname", "copy"]).await?;
    assert_eq!(members(&list, "cloned_from"), [origin]);
    let table = output_of(&site, &["agent", "list"]).await?;
    assert_contains(&table, "clone of 1111a000");
    assert_contains(&table, "copy");
    Ok(())
}
