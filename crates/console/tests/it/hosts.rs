//! The list of hosts: search, pages, order, and changes of many.

use anyhow::Result;
use svc_store::Role;

use crate::support::{Client, Console, seed_hosts};

/// The names on a page, in their order.
async fn names(client: &Client, path: &str) -> Result<Vec<String>> {
    let page = client.get(path).await?;
    assert_eq!(page.status, 200, "{path}: {}", page.body);
    let rows = page.body.split("<td class=\"name\">").skip(1);
    let names = rows.filter_map(|row| {
        let (_, rest) = row.split_once('>')?;
        Some(rest.split_once('<')?.0.to_owned())
    });
    Ok(names.collect())
}

#[tokio::test]
async fn searches_find_by_part_of_the_name_address_label_system_and_presence() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 120).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let found = async |query: &str| names(&client, &format!("/hosts?q={query}")).await;
    assert_eq!(found("eb-07").await?.len(), 10);
    assert_eq!(found("WEB-119").await?, ["web-119"]);
    assert_eq!(found("10.0.0.7").await?, ["web-007"]);
    assert_eq!(found("label:env%3Dprod+web-00").await?.len(), 5);
    assert_eq!(found("os:debian+web-11").await?.len(), 10);
    assert_eq!(found("os:fedora").await?.len(), 0);
    assert_eq!(found("version:0.1+web-11").await?.len(), 10);
    assert_eq!(
        found("is:offline+web-00").await?,
        ["web-000", "web-003", "web-006", "web-009"]
    );
    assert_eq!(found("is:online+web-00").await?.len(), 6);
    assert_eq!(found("disk:98").await?, ["web-098", "web-099"]);
    console
        .site
        .psql("UPDATE agent_state SET clock_skew_ms = -40000 WHERE agent_id = (SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE hostname = 'web-010');
               UPDATE agent_state SET last_gap_at = now() WHERE agent_id = (SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE hostname = 'web-020')")
        .await?;
    assert_eq!(found("is:skewed").await?, ["web-010"]);
    assert_eq!(found("has:gaps").await?, ["web-020"]);
    assert_eq!(found("%25").await?.len(), 0, "wildcards are letters");
    assert_eq!(
        found("b-").await?.len(),
        50,
        "a short text is found anywhere"
    );
    assert_eq!(found("19").await?, ["web-019", "web-119"]);
    assert_eq!(
        found("is:online+version:0.1+19").await?,
        ["web-019", "web-119"]
    );
    assert_eq!(found("version:7").await?.len(), 0);
    assert_eq!(found("os:12+is:offline+web-00").await?.len(), 4);
    let nonsense = client.get("/hosts?q=colour:red").await?;
    assert!(nonsense.has("Not understood: <code>colour:red</code>"));
    Ok(())
}

#[tokio::test]
async fn pages_follow_each_other_without_repeating_or_missing_a_host() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 120).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    // Hosts without a known disk come last, and there are more than a page of them.
    let unknown = "UPDATE host_vitals SET fullest_disk_percent = NULL FROM hosts
                    WHERE id = host_id AND right(hostname, 3)::int > 40";
    console.site.psql(unknown).await?;
    for (query, expected) in [
        ("sort=name", 120),
        ("sort=disk", 120),
        ("sort=offline", 40),
        ("q=web-0", 100),
        ("q=label:env%3Dprod", 60),
    ] {
        let (mut all, mut path) = (Vec::new(), format!("/hosts?{query}"));
        for _ in 0..5 {
            all.extend(names(&client, &path).await?);
            let page = client.get(&path).await?;
            assert!(page.has(&format!(">{expected} hosts</p>")), "{path}");
            let Some((before, _)) = page.body.split_once("\" rel=\"next\"") else {
                break;
            };
            path = before
                .rsplit_once("href=\"")
                .unwrap()
                .1
                .replace("&#38;", "&")
                .replace("&amp;", "&");
        }
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (expected, expected), "{query}");
        let by_name = !["sort=disk", "sort=offline"].contains(&query);
        assert!(!by_name || all.is_sorted(), "{query}: {all:?}");
    }
    Ok(())
}

#[tokio::test]
async fn many_hosts_are_labelled_and_retired_after_a_preview() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 30).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let form = [
        ("scope", "all"),
        ("q", "web-00"),
        ("action", "label"),
        ("labels", "team=web, -env"),
    ];
    let preview = client.post("/hosts/bulk", &form).await?;
    assert!(
        preview.has("Label 10 hosts") && preview.has("web-009"),
        "{preview:?}"
    );
    let nothing = console
        .site
        .psql("SELECT count(*) FROM hosts WHERE labels ? 'team'")
        .await?;
    assert_eq!(nothing, "0", "a preview changes nothing");
    let ids = console
        .site
        .psql("SELECT id FROM hosts WHERE hostname LIKE 'web-00%'")
        .await?;
    let mut form = vec![("action", "label"), ("labels", "team=web, -env")];
    form.extend(ids.lines().map(|id| ("id", id)));
    assert_eq!(client.post("/hosts/bulk/apply", &form).await?.status, 303);
    console
        .site
        .expect(
            "SELECT count(*) FROM hosts WHERE labels = '{\"team\": \"web\"}'",
            "10",
        )
        .await?;
    form[0] = ("action", "retire");
    form.push(("reason", "moved"));
    assert_eq!(client.post("/hosts/bulk/apply", &form).await?.status, 303);
    console
        .site
        .expect(
            "SELECT count(*) FROM hosts WHERE retired_at IS NOT NULL",
            "10",
        )
        .await?;
    let by = "SELECT DISTINCT actor || ' ' || reason FROM agent_events WHERE to_status = 'revoked'";
    console.site.expect(by, "olga moved").await?;
    let activity = client.get("/activity?actor=olga").await?;
    assert!(
        activity.has("team=web, -env") && activity.has("active → revoked"),
        "{activity:?}"
    );
    let csv = client
        .get("/activity/export?format=csv&actor=olga&kind=labels")
        .await?;
    assert_eq!(csv.body.lines().count(), 11, "{}", csv.body);
    Ok(())
}

#[tokio::test]
async fn a_search_with_a_mistyped_word_changes_nothing() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 3).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    for search in [
        "lable:env=prod",
        "a b c d e f g h i j k l web",
        &"web ".repeat(100),
    ] {
        let form = [("scope", "all"), ("q", search), ("action", "retire")];
        let refused = client.post("/hosts/bulk", &form).await?;
        assert_eq!(refused.status, 400, "{search}");
        assert!(refused.has("not understood"), "{refused:?}");
    }
    Ok(())
}

#[tokio::test]
async fn who_retired_a_host_without_agents_is_on_record() -> Result<()> {
    let console = Console::start().await?;
    let id = "INSERT INTO hosts (hostname) VALUES ('old-1') RETURNING id";
    let id = console.site.psql(id).await?;
    let id = id.lines().next().unwrap();
    let client = console.signed_in("olga", Role::Operator).await?;
    let page = client.get(&format!("/hosts/{id}")).await?;
    assert!(page.has("It has no agent that could report."), "{page:?}");
    for reason in ["sold", "again"] {
        let form = [("reason", reason)];
        let retired = client.post(&format!("/hosts/{id}/retire"), &form).await?;
        assert_eq!(retired.status, 303);
    }
    let activity = client.get("/activity?kind=retired&actor=olga").await?;
    assert!(
        activity.has("old-1") && activity.has("sold"),
        "{activity:?}"
    );
    assert!(!activity.has("again"), "it was retired once");
    Ok(())
}

#[tokio::test]
async fn a_label_with_spaces_is_found_by_its_link() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 3).await?;
    let label = "UPDATE hosts SET labels = '{\"team\": \"web ops\"}' WHERE hostname = 'web-001'";
    console.site.psql(label).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let page = client.get("/hosts").await?;
    let (before, _) = page.body.split_once("\">team=web ops</a>").unwrap();
    let (_, link) = before.rsplit_once("href=\"").unwrap();
    assert_eq!(names(&client, link).await?, ["web-001"], "{link}");
    Ok(())
}

#[tokio::test]
async fn a_person_adds_a_note_and_labels_to_a_host() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let note = client
        .post(&format!("/hosts/{id}/note"), &[("note", "disk replaced")])
        .await?;
    assert_eq!(note.status, 303);
    assert_eq!(
        client
            .post(&format!("/hosts/{id}/note"), &[("note", " ")])
            .await?
            .status,
        400
    );
    client
        .post(&format!("/hosts/{id}/labels"), &[("labels", "rack=b7")])
        .await?;
    let page = client.get(&format!("/hosts/{id}")).await?;
    assert!(
        page.has("disk replaced") && page.has("by olga") && page.has("rack=b7"),
        "{page:?}"
    );
    Ok(())
}
