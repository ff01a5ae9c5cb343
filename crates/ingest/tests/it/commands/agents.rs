//! `svc-ingest agent`.

use anyhow::Result;

use super::{agent, complaint, done, each, id, json, rival, run};
use crate::harness::Site;

const STATUSES: &str = "SELECT string_agg(status, ' ' ORDER BY id) FROM agents";

#[tokio::test]
async fn agents_are_listed_with_their_columns_and_filtered() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", r#"{"site": "berlin", "env": "prod"}"#).await?;
    agent(&site, '2', "web-2", r#"{"site": "oslo"}"#).await?;
    done(&site, &["agent", "approve", &one]).await?;
    let list = json(&site, &["agent", "list"]).await?;
    assert_eq!(
        each(&list, "status"),
        ["pending", "active"],
        "who waits comes first"
    );
    assert_eq!(each(&list, "presence"), ["offline", "offline"]);
    let waiting = &list[0];
    assert_eq!(waiting["id"], id('a', '2'));
    assert_eq!(waiting["pending_reason"], "approval");
    assert_eq!(waiting["key"].as_str().map(str::len), Some(64));
    let key = site.psql("SELECT encode(sha256('2'), 'hex')").await?;
    assert_eq!(waiting["key"], key);
    let table = done(&site, &["agent", "list"]).await?;
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
        assert_eq!(each(&list, "hostname"), hosts, "{filter:?}");
    }
    let wrong = run(&site, &["agent", "list", "--status", "asleep"]).await?;
    assert_eq!(wrong.code, Some(2));
    Ok(())
}

#[tokio::test]
async fn an_agent_is_named_by_id_key_or_host_and_never_guessed() -> Result<()> {
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
        assert_eq!(
            json(&site, &["agent", "show", name]).await?["id"],
            one.as_str(),
            "{name}"
        );
    }
    for name in ["1111", "twin"] {
        let several = complaint(&site, 1, &["agent", "show", name]).await?;
        assert!(
            several.contains("fits several agents") && several.contains(&other),
            "{several}"
        );
    }
    for name in ["111", &key[..7], "web", "", "%", "1111a%"] {
        let nobody = complaint(&site, 1, &["agent", "show", name]).await?;
        assert!(nobody.contains("svc-ingest agent list"), "{nobody}");
    }
    Ok(())
}

#[tokio::test]
async fn decisions_are_recorded_with_who_and_why() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    done(
        &site,
        &[
            "agent", "approve", &one, "--actor", "ben", "--reason", "seen it",
        ],
    )
    .await?;
    done(&site, &["agent", "revoke", &one]).await?;
    done(&site, &["agent", "reopen", &one]).await?;
    done(&site, &["agent", "reject", &one, "--reason", "not ours"]).await?;
    let shown = json(&site, &["agent", "show", &one]).await?;
    let told =
        ["to_status", "actor", "reason", "db_user"].map(|member| each(&shown["events"], member));
    assert_eq!(
        told[0],
        ["pending", "active", "revoked", "pending", "rejected"]
    );
    assert_eq!(told[1], ["null", "ben", "ann", "ann", "ann"]);
    assert_eq!(told[2], ["approval", "seen it", "null", "null", "not ours"]);
    assert_eq!(told[3], ["svc"; 5]);
    assert_eq!(shown["facts"]["hostname"], "web-1");
    let table = done(&site, &["agent", "show", &one]).await?;
    let key = site.psql("SELECT encode(sha256('1'), 'hex')").await?;
    assert!(
        table.contains(&key) && table.contains("active -> revoked"),
        "{table}"
    );
    Ok(())
}

#[tokio::test]
async fn a_decision_that_cannot_be_says_what_to_do_instead() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    let wrong = complaint(&site, 1, &["agent", "revoke", &one]).await?;
    assert!(wrong.contains("reject it instead"), "{wrong}");
    done(&site, &["agent", "approve", &one]).await?;
    let wrong = complaint(&site, 1, &["agent", "approve", &one]).await?;
    assert!(wrong.ends_with("is active, not pending"), "{wrong}");
    let wrong = complaint(&site, 1, &["agent", "reject", &one]).await?;
    assert!(wrong.contains("revoke it instead"), "{wrong}");
    done(&site, &["agent", "revoke", &one]).await?;
    let wrong = complaint(&site, 1, &["agent", "approve", &one]).await?;
    assert!(wrong.contains("reopen it first"), "{wrong}");
    Ok(())
}

#[tokio::test]
async fn of_several_each_has_its_outcome_and_one_failure_is_exit_code_1() -> Result<()> {
    let site = Site::new().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "web-2", "{}").await?;
    let ended = run(
        &site,
        &[
            "agent", "approve", &one, "nobody", "web-2", "--output", "json",
        ],
    )
    .await?;
    assert_eq!(ended.code, Some(1));
    let outcomes: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    assert_eq!(each(&outcomes, "status"), ["active", "null", "active"]);
    assert_eq!(each(&outcomes, "name"), [one.as_str(), "nobody", "web-2"]);
    assert!(
        outcomes[1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("no agent"))
    );
    assert_eq!(site.psql(STATUSES).await?, "active active");
    let ended = run(&site, &["agent", "revoke", "nobody", "web-2"]).await?;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stdout.starts_with("revoked 2222a000 on web-2"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stderr.contains("no agent is called \"nobody\""),
        "{}",
        ended.stderr
    );
    Ok(())
}

#[tokio::test]
async fn all_pending_needs_a_yes_and_keeps_to_its_label() -> Result<()> {
    let site = Site::new().await?;
    agent(&site, '1', "web-1", r#"{"site": "berlin"}"#).await?;
    agent(&site, '2', "web-2", r#"{"site": "oslo"}"#).await?;
    agent(&site, '3', "web-3", r#"{"site": "oslo"}"#).await?;
    for verb in ["approve", "reject"] {
        let refused = complaint(&site, 2, &["agent", verb, "--all-pending"]).await?;
        assert!(refused.contains("--yes"), "{refused}");
    }
    assert_eq!(site.psql(STATUSES).await?, "pending pending pending");
    done(
        &site,
        &[
            "agent",
            "approve",
            "--all-pending",
            "--label",
            "site=oslo",
            "--yes",
        ],
    )
    .await?;
    assert_eq!(site.psql(STATUSES).await?, "pending active active");
    done(&site, &["agent", "reject", "--all-pending", "--yes"]).await?;
    assert_eq!(site.psql(STATUSES).await?, "rejected active active");
    assert_eq!(
        json(&site, &["agent", "approve", "--all-pending", "--yes"]).await?,
        serde_json::json!([])
    );
    for wrong in [
        &["agent", "approve"][..],
        &["agent", "approve", "x", "--all-pending"],
        &["agent", "approve", "x", "--label", "a=b"],
        &["agent", "approve", "--all-pending", "--replace", "--yes"],
        &["agent", "approve", "x", "--replace", "--new-host"],
        &["agent", "revoke"],
    ] {
        assert_eq!(run(&site, wrong).await?.code, Some(2), "{wrong:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_conflict_asks_what_is_meant_and_all_pending_leaves_it() -> Result<()> {
    let site = Site::new().await?;
    let old = agent(&site, '1', "web-1", "{}").await?;
    done(&site, &["agent", "approve", &old]).await?;
    let new = rival(&site, '2', &old).await?;
    agent(&site, '3', "web-3", "{}").await?;
    let refused = complaint(&site, 1, &["agent", "approve", &new]).await?;
    assert!(
        refused.contains("--replace") && refused.contains("--new-host") && refused.contains(&old),
        "{refused}"
    );
    let all = run(&site, &["agent", "approve", "--all-pending", "--yes"]).await?;
    assert_eq!(all.code, Some(1));
    assert_eq!(site.psql(STATUSES).await?, "active pending active");
    let table = done(&site, &["agent", "list"]).await?;
    assert!(table.contains("conflict with 1111a000"), "{table}");
    let table = done(&site, &["agent", "show", &new]).await?;
    assert!(
        table.contains(&old) && table.contains("--new-host"),
        "{table}"
    );
    Ok(())
}

#[tokio::test]
async fn replacing_keeps_the_host_and_revokes_the_old_agent() -> Result<()> {
    let site = Site::new().await?;
    let old = agent(&site, '1', "web-1", "{}").await?;
    done(&site, &["agent", "approve", &old]).await?;
    let new = rival(&site, '2', &old).await?;
    let outcome = json(&site, &["agent", "approve", &new, "--replace"]).await?;
    assert_eq!(outcome[0]["host_id"], id('b', '1'));
    assert_eq!(site.psql(STATUSES).await?, "revoked active");
    assert_eq!(site.psql("SELECT count(*) FROM hosts").await?, "1");
    let why = format!("SELECT decided_by, decision_reason FROM agents WHERE id = '{old}'");
    assert_eq!(site.psql(&why).await?, format!("ann|superseded by {new}"));
    Ok(())
}

#[tokio::test]
async fn a_new_host_leaves_the_old_agent_in_peace() -> Result<()> {
    let site = Site::new().await?;
    let old = agent(&site, '1', "web-1", r#"{"site": "oslo"}"#).await?;
    done(&site, &["agent", "approve", &old]).await?;
    let new = rival(&site, '2', &old).await?;
    let outcome = json(&site, &["agent", "approve", &new, "--new-host"]).await?;
    assert_ne!(outcome[0]["host_id"], id('b', '1'));
    assert_eq!(site.psql(STATUSES).await?, "active active");
    let hosts = "SELECT count(*), count(DISTINCT hostname), count(DISTINCT labels) FROM hosts";
    assert_eq!(site.psql(hosts).await?, "2|1|1");
    let known = "SELECT count(DISTINCT host_id), count(DISTINCT value) FROM host_identifiers";
    assert_eq!(site.psql(known).await?, "2|1");
    Ok(())
}

#[tokio::test]
async fn a_clone_is_listed_with_its_origin_and_with_its_own_name() -> Result<()> {
    let site = Site::new().await?;
    let origin = agent(&site, '1', "web-1", "{}").await?;
    let clone = rival(&site, '2', &origin).await?;
    site.psql(&format!(
        "UPDATE agents SET pending_reason = 'clone', conflict_with = NULL, cloned_from = '{origin}',
                           facts = facts || '{{\"hostname\": \"copy\"}}' WHERE id = '{clone}'"
    ))
    .await?;
    let list = json(&site, &["agent", "list", "--hostname", "copy"]).await?;
    assert_eq!(each(&list, "cloned_from"), [origin]);
    let table = done(&site, &["agent", "list"]).await?;
    assert!(
        table.contains("clone of 1111a000") && table.contains("copy"),
        "{table}"
    );
    Ok(())
}
