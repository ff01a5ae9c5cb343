//! `svc-ingest token`.

use anyhow::{Context, Result};
use svc_ingest::enrol::EnrolmentToken;
use svc_testkit::{Site, assert_contains};

use super::{active_agent, agent, command, failure_of, json, members, output_of, run};

#[tokio::test]
async fn a_token_has_safe_defaults_and_its_secret_is_shown_once() -> Result<()> {
    let site = Site::new().await?;
    let made = json(&site, &["token", "create"]).await?;
    let secret = made["token"].as_str().context("the secret")?;
    assert!(EnrolmentToken::parse(secret).is_ok());
    for (member, value) in [
        ("max_uses", 1.into()),
        ("uses", 0.into()),
        ("auto_approve", false.into()),
        ("allow_reinstall", false.into()),
        ("state", "active".into()),
        ("created_by", "ann".into()),
    ] {
        let value: serde_json::Value = value;
        assert_eq!(made[member], value, "{member}");
    }
    let week = "SELECT expires_at = created_at + interval '7 days' FROM enrolment_tokens";
    site.expect(week, "t").await?;
    let shown = json(
        &site,
        &["token", "show", made["id"].as_str().context("id")?],
    )
    .await?;
    assert_eq!(shown["token"], serde_json::Value::Null);
    assert_eq!(shown["agents"], serde_json::json!([]));
    Ok(())
}

#[tokio::test]
async fn every_option_of_a_new_token_is_recorded_and_its_secret_is_not() -> Result<()> {
    let site = Site::new().await?;
    let arguments = [
        "token",
        "create",
        "--label",
        "rack 4",
        "--max-uses",
        "50",
        "--expires-in",
        "never",
        "--auto-approve",
        "--allow-reinstall",
        "--labels",
        "site=berlin,env=prod",
        "--labels",
        "tier=web",
        "--created-by",
        "ben",
    ];
    let ended = run(&site, 0, &arguments).await?;
    assert_contains(&ended.stderr, "warning: anyone with this token");
    let secret = ended.stdout.lines().next().context("a line")?;
    assert!(EnrolmentToken::parse(secret).is_ok(), "{}", ended.stdout);
    assert_contains(&ended.stdout, "shown once");
    let dump = crate::registration::dump(&site).await?;
    assert!(dump.contains("rack 4") && !dump.contains(&secret[8..40]));
    let row = "SELECT label, max_uses, expires_at IS NULL, auto_approve, allow_reinstall, labels, created_by FROM enrolment_tokens";
    site.expect(
        row,
        r#"rack 4|50|t|t|t|{"env": "prod", "site": "berlin", "tier": "web"}|ben"#,
    )
    .await?;
    let list = json(&site, &["token", "list"]).await?;
    assert_eq!(list[0]["labels"]["site"], "berlin");
    let table = output_of(&site, &["token", "list"]).await?;
    for part in ["0/50", "never", "auto, reinstall"] {
        assert_contains(&table, part);
    }
    Ok(())
}

#[tokio::test]
async fn wrong_usage_is_refused_with_2() -> Result<()> {
    let site = Site::new().await?;
    let many: Vec<String> = (0..65).map(|n| format!("k{n}=")).collect();
    let many = many.join(",");
    for arguments in [
        &["--max-uses", "0"][..],
        &["--max-uses", "3000000000"],
        &["--expires-in", "tomorrow"],
        &["--expires-in", "5s"],
        &["--labels", "site"],
        &["--labels", "a=1,a=2"],
        &["--labels", "rack no=4"],
        &["--labels", many.as_str()],
        &["--label", "two\nlines"],
        &["--output", "xml"],
    ] {
        run(&site, 2, &[&["token", "create"], arguments].concat()).await?;
    }
    site.expect("SELECT count(*) FROM enrolment_tokens", "0")
        .await
}

#[tokio::test]
async fn a_token_is_named_by_id_prefix_label_or_itself() -> Result<()> {
    let site = Site::new().await?;
    let made = json(&site, &["token", "create", "--label", "one"]).await?;
    for label in ["two", "two"] {
        output_of(&site, &["token", "create", "--label", label]).await?;
    }
    let id = made["id"].as_str().context("id")?;
    let secret = made["token"].as_str().context("token")?;
    for name in [id, &id[..8], &id.to_uppercase(), "one", secret] {
        let shown = json(&site, &["token", "show", name]).await?;
        assert_eq!(shown["id"], id, "{name}");
    }
    let several = failure_of(&site, 1, &["token", "show", "two"]).await?;
    assert_eq!(several.matches("(two, active)").count(), 2, "{several}");
    let missing = failure_of(&site, 1, &["token", "revoke", "three"]).await?;
    assert_contains(&missing, "svc-ingest token list");
    let unknown = EnrolmentToken::generate()?;
    let unknown = failure_of(&site, 1, &["token", "show", unknown.expose()]).await?;
    assert!(!unknown.contains("svc_enr_"), "{unknown}");
    Ok(())
}

#[tokio::test]
async fn revoking_a_token_revokes_its_agents_only_on_request() -> Result<()> {
    let site = Site::new().await?;
    let made = json(&site, &["token", "create"]).await?;
    let id = made["id"].as_str().context("id")?;
    active_agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "web-2", "{}").await?;
    agent(&site, '3', "web-3", "{}").await?;
    let adopt = format!("UPDATE agents SET token_id = '{id}' WHERE id::text < '3333'");
    site.psql(&adopt).await?;
    let shown = json(&site, &["token", "show", id]).await?;
    assert_eq!(members(&shown["agents"], "hostname"), ["web-2", "web-1"]);

    let first = json(&site, &["token", "revoke", id, "--actor", "ben"]).await?;
    assert_eq!(first["state"], "revoked");
    assert_eq!(first["revoked_by"], "ben");
    assert_eq!(first["agents_ended"], 0);
    let again = json(&site, &["token", "revoke", id, "--revoke-agents"]).await?;
    assert_eq!(again["agents_ended"], 2);
    assert_eq!(again["revoked_by"], "ben", "the first revocation is kept");
    let statuses = "SELECT string_agg(status, ' ' ORDER BY id) FROM agents";
    site.expect(statuses, "revoked rejected pending").await
}

#[tokio::test]
async fn a_truncated_list_says_that_it_is() -> Result<()> {
    let site = Site::new().await?;
    for _ in 0..3 {
        output_of(&site, &["token", "create"]).await?;
    }
    let two = ["token", "list", "--limit", "2", "--output", "json"];
    let cut = run(&site, 0, &two).await?;
    let list: serde_json::Value = serde_json::from_str(&cut.stdout)?;
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert_contains(&cut.stderr, "--limit");
    let table = output_of(&site, &["token", "list", "--limit", "2"]).await?;
    assert_contains(&table, "only the first 2 are shown");
    let whole = run(&site, 0, &["token", "list", "--limit", "3"]).await?;
    assert!(!whole.stdout.contains("only the first"), "{}", whole.stdout);
    Ok(())
}

/// In the list that the console shows as Activity.
#[tokio::test]
async fn tokens_that_commands_make_and_revoke_are_recorded_with_the_systems_user() -> Result<()> {
    let site = Site::new().await?;
    let made = [
        "token",
        "create",
        "--label",
        "door",
        "--max-uses",
        "5",
        "--auto-approve",
    ];
    let revoked = ["token", "revoke", "door", "--reason", "leaked"];
    for arguments in [&made[..], &revoked[..]] {
        let sudo = command(&site, arguments).set("SUDO_USER", "otto");
        sudo.exits(0).await?;
    }
    let activity = site
        .store()?
        .console_activity(&svc_store::ActivityFilter::default(), None, 10)
        .await?;
    let shown = activity.rows.iter().map(|row| {
        let actor = row.actor.as_deref().unwrap_or_default();
        format!("{} {} by {actor}: {}", row.kind, row.subject, row.reason)
    });
    let wanted = [
        "token revoked door by otto: leaked",
        "token created door by otto: 5 uses, approves by itself",
    ];
    assert_eq!(shown.collect::<Vec<_>>(), wanted);
    Ok(())
}
