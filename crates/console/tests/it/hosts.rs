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
    let of = "WHERE agent_id = (SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE hostname =";
    let states = format!(
        "UPDATE agent_state SET clock_skew_ms = -40000 {of} 'web-010');
         UPDATE agent_state SET last_gap_at = now() {of} 'web-020')"
    );
    console.site.psql(&states).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    for (query, found) in [
        ("WEB-119", "web-119"),
        ("10.0.0.7", "web-007"),
        ("19", "web-019 web-119"),
        ("is:offline+web-00", "web-000 web-003 web-006 web-009"),
        ("disk:98", "web-098 web-099"),
        ("is:skewed", "web-010"),
        ("has:gaps", "web-020"),
        ("is:online+version:0.1+19", "web-019 web-119"),
    ] {
        let names = names(&client, &format!("/hosts?q={query}")).await?;
        assert_eq!(names.join(" "), found, "{query}");
    }
    for (query, count) in [
        ("eb-07", 10),
        ("label:env%3Dprod+web-00", 5),
        ("os:debian+web-11", 10),
        ("os:fedora", 0),
        ("version:0.1+web-11", 10),
        ("version:7", 0),
        ("is:online+web-00", 6),
        ("os:12+is:offline+web-00", 4),
        // A wildcard is a letter; a short text is found anywhere.
        ("%25", 0),
        ("b-", 50),
    ] {
        let names = names(&client, &format!("/hosts?q={query}")).await?;
        assert_eq!(names.len(), count, "{query}: {names:?}");
    }
    let nonsense = client.get("/hosts?q=colour:red").await?;
    nonsense.shows(&["Not understood: <code>colour:red</code>"]);
    Ok(())
}

#[tokio::test]
async fn an_absence_of_any_length_is_found_and_the_fleet_page_leads_there() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 12).await?;
    // Offline are 0, 3, 6 and 9. Of a host that is online, the time is that of its connection.
    let since = "UPDATE agent_state s SET presence_since = now() - interval '2 days' + right(hostname, 3)::int * interval '10 hours'
                   FROM agents a JOIN hosts h ON h.id = a.host_id WHERE a.id = s.agent_id AND right(hostname, 3)::int < 5";
    console.site.psql(since).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    for (query, found) in [
        ("offline:1d", "web-000"),
        ("offline:17h&sort=offline", "web-000 web-003"),
        ("offline:1000m", "web-000 web-003"),
        ("offline:3d", ""),
        ("offline:1d+is:online", ""),
        ("offline:1d+web-003", ""),
    ] {
        let names = names(&client, &format!("/hosts?q={query}")).await?;
        assert_eq!(names.join(" "), found, "{query}");
    }
    let nonsense = client.get("/hosts?q=offline:soon").await?;
    nonsense.shows(&["Not understood: <code>offline:soon</code>"]);
    svc_testkit::eventually("the fleet page counts it", async || {
        let page = client.get("/").await;
        page.is_ok_and(|page| page.has("offline for more than a day"))
    })
    .await?;
    let page = client.get("/").await?;
    let (_, link) = page
        .body
        .split_once("<li class=\"warn\"><a href=\"")
        .unwrap();
    let link = link.split('"').next().unwrap();
    let link = link.replace("&#38;", "&");
    assert_eq!(names(&client, &link).await?, ["web-000"], "{link}");
    Ok(())
}

#[tokio::test]
async fn pages_follow_each_other_without_repeating_or_missing_a_host() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Viewer).await?;
    seed_hosts(&console.site, 120).await?;
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
            page.shows(&[&format!(">{expected} hosts</p>")]);
            match page.link("rel=\"next\"") {
                Some(next) => path = next,
                None => break,
            }
        }
        let mut back = Vec::new();
        while let Some(previous) = client.get(&path).await?.link("rel=\"prev\"") {
            let page = names(&client, &previous).await?;
            back.splice(0..0, page);
            path = previous;
        }
        assert_eq!(back, all[..back.len()], "{query}: the way back");
        assert_eq!(back.len(), (expected - 1) / 50 * 50, "{query}");
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
    let site = &console.site;
    seed_hosts(site, 30).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let labelled = "SELECT count(*) FROM hosts WHERE labels = '{\"team\": \"web\"}'";
    let retired = "SELECT count(*) FROM hosts WHERE retired_at IS NOT NULL";
    for (action, labels, words, result_words, changed) in [
        (
            "label",
            "team=web, -env",
            "Label 10 hosts",
            "10 hosts labelled",
            labelled,
        ),
        ("retire", "", "Retire 10 hosts", "10 hosts retired", retired),
    ] {
        let form = [
            ("scope", "all"),
            ("q", "web-00"),
            ("action", action),
            ("labels", labels),
        ];
        let preview = client.post("/hosts/bulk", &form).await?;
        preview.shows(&[words, "web-009"]);
        site.expect(changed, "0").await?;
        let mut form = preview.hidden();
        assert_eq!(form.len(), 12, "action, labels, and 10 ids: {form:?}");
        if action == "retire" {
            let silent = client.submit("/hosts/bulk/apply", &form).await?;
            assert_eq!(silent, 400, "a retirement needs a reason");
        }
        form.push(("reason", "moved"));
        let result = client.post("/hosts/bulk/apply", &form).await?;
        result.shows(&[result_words]);
        site.expect(changed, "10").await?;
    }
    let by = "SELECT DISTINCT actor || ' ' || reason FROM agent_events WHERE to_status = 'revoked'";
    site.expect(by, "olga moved").await?;
    let activity = client.get("/activity?actor=olga").await?;
    activity.shows(&["team=web, -env", "active → revoked"]);
    let csv = client.get("/activity/export?format=csv&actor=olga&kind=labels");
    let csv = csv.await?;
    assert_eq!(csv.body.lines().count(), 11, "{}", csv.body);
    Ok(())
}

#[tokio::test]
async fn a_change_of_many_says_which_hosts_it_left_out() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    seed_hosts(site, 300).await?;
    // In the second batch, one host has as many labels as a host may have.
    let full = "UPDATE hosts SET labels = (SELECT jsonb_object_agg('k' || n, '') FROM generate_series(1, 64) AS n)
                 WHERE id = (SELECT max(id::text)::uuid FROM hosts)";
    site.psql(full).await?;
    let form = [
        ("scope", "all"),
        ("q", "web"),
        ("action", "label"),
        ("labels", "rack=b7"),
    ];
    let preview = client.post("/hosts/bulk", &form).await?;
    let result = client.post("/hosts/bulk/apply", &preview.hidden()).await?;
    assert_eq!(result.status, 200);
    result.shows(&["299 hosts labelled, 1 refused", "more than 64 labels"]);
    let labelled = "SELECT count(*) FROM hosts WHERE labels ? 'rack'";
    site.expect(labelled, "299").await
}

/// The database goes away in the middle: a host of the second batch is locked, so that batch runs into its time limit.
#[tokio::test]
async fn a_change_of_many_that_stops_says_what_is_left_and_goes_on_from_there() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    seed_hosts(site, 300).await?;
    let form = [
        ("scope", "all"),
        ("q", "web"),
        ("action", "label"),
        ("labels", "rack=b7"),
    ];
    let preview = client.post("/hosts/bulk", &form).await?;
    let lock = "BEGIN; SELECT FROM hosts WHERE id = (SELECT max(id::text)::uuid FROM hosts) FOR UPDATE; SELECT pg_sleep(12); COMMIT";
    let hidden = preview.hidden();
    let (held, result) = tokio::join!(site.psql(lock), async {
        let locked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
        site.becomes(locked, "t").await?;
        client.post("/hosts/bulk/apply", &hidden).await
    });
    held?;
    let result = result?;
    result.shows(&["250 hosts labelled, 50 left", "What is done stays done"]);
    let labelled = "SELECT count(*) FROM hosts WHERE labels ? 'rack'";
    site.expect(labelled, "250").await?;
    let rest = client.post("/hosts/bulk/apply", &result.hidden()).await?;
    rest.shows(&["50 hosts labelled"]);
    site.expect(labelled, "300").await
}

#[tokio::test]
async fn a_search_with_a_mistyped_word_changes_nothing() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    seed_hosts(&console.site, 3).await?;
    for search in [
        "lable:env=prod",
        "a b c d e f g h i j k l web",
        &"web ".repeat(100),
    ] {
        let form = [("scope", "all"), ("q", search), ("action", "retire")];
        let refused = client.post("/hosts/bulk", &form).await?;
        assert_eq!(refused.status, 400, "{search}");
        refused.shows(&["not understood"]);
    }
    Ok(())
}

#[tokio::test]
async fn who_retired_a_host_without_agents_is_on_record() -> Result<()> {
    let console = Console::start().await?;
    let id = "INSERT INTO hosts (hostname) VALUES ('old-1') RETURNING id";
    let id = console.site.psql(id).await?;
    let page = format!("/hosts/{}", id.lines().next().unwrap());
    let client = console.signed_in("olga", Role::Operator).await?;
    let shown = client.get(&page).await?;
    shown.shows(&["It has no agent that could report."]);
    let retire = format!("{page}/retire");
    assert_eq!(client.submit(&retire, &[("reason", "sold")]).await?, 303);
    assert_eq!(client.submit(&retire, &[("reason", "again")]).await?, 303);
    let activity = client.get("/activity?kind=retired&actor=olga").await?;
    activity.shows(&["old-1", "sold"]);
    assert!(!activity.has("again"), "it was retired once");
    Ok(())
}

#[tokio::test]
async fn a_person_adds_a_note_and_labels_to_a_host() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 1).await?;
    let id = console.site.psql("SELECT id FROM hosts").await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let (page, note) = (format!("/hosts/{id}"), format!("/hosts/{id}/note"));
    let noted = client.submit(&note, &[("note", "disk replaced")]).await?;
    assert_eq!(noted, 303);
    assert_eq!(client.submit(&note, &[("note", " ")]).await?, 400);
    let labels = [("labels", "rack=b7")];
    client.submit(&format!("{page}/labels"), &labels).await?;
    let shown = client.get(&page).await?;
    shown.shows(&["disk replaced", "by olga", "rack=b7"]);
    Ok(())
}
