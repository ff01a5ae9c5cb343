//! The process: health, metrics, schema, faults of the database, and its commands.

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{Site, assert_contains, eventually, faults::behind_proxy};

use crate::support::{Client, Console, seed_hosts};

#[tokio::test]
async fn health_and_metrics_answer_and_metrics_are_not_for_outside() -> Result<()> {
    let console = Console::start().await?;
    let client = console.client();
    assert_eq!(client.get("/healthz").await?.body, "ok");
    let metrics = client.get("/metrics").await?;
    metrics.shows(&["console_http_requests_total", "route=\"/healthz\""]);
    assert_contains(
        metrics.header("content-type").unwrap_or_default(),
        "text/plain",
    );
    assert!(!metrics.has("# EOF"), "{}", metrics.body);
    let asked = "Accept: application/openmetrics-text\r\n";
    let open = client.send("GET", "/metrics", asked, "").await?;
    assert_contains(
        open.header("content-type").unwrap_or_default(),
        "openmetrics",
    );
    open.shows(&["# EOF"]);
    let forwarded = "X-Forwarded-For: 1.2.3.4\r\n";
    let hidden = client.send("GET", "/metrics", forwarded, "").await?;
    assert_eq!(hidden.status, 404);
    Ok(())
}

#[tokio::test]
async fn the_schema_is_the_web_roles_own_and_every_object_has_a_comment() -> Result<()> {
    let console = Console::start().await?;
    let owned =
        "SELECT nspowner::regrole::text LIKE 'web_%' FROM pg_namespace WHERE nspname = 'console'";
    console.site.expect(owned, "t").await?;
    let bare = "SELECT coalesce(string_agg(relname || '.' || attname, ', '), '') FROM pg_class c
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'console'::regnamespace AND relkind = 'r'
                   AND (col_description(c.oid, attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)";
    console.site.expect(bare, "").await?;
    let tables = "SELECT count(*) > 3 FROM pg_class WHERE relnamespace = 'console'::regnamespace AND relkind = 'r'";
    console.site.expect(tables, "t").await
}

/// A console with hosts on a server of its own, and a client that is signed in.
async fn on_own_server() -> Result<(Console, Client)> {
    let console = Console::on(Site::with_own_server().await?, &[]).await?;
    seed_hosts(&console.site, 3).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    assert_eq!(client.status("/hosts").await?, 200);
    Ok((console, client))
}

/// Waits until the pages are back, and the session with them.
async fn back(client: &Client) -> Result<()> {
    eventually("the pages are back", async || {
        let page = client.get("/hosts").await;
        page.is_ok_and(|page| page.status == 200 && page.has("web-002"))
    })
    .await
}

#[tokio::test]
async fn the_console_survives_its_database() -> Result<()> {
    let (mut console, client) = on_own_server().await?;
    console.site.postgres().stop_immediate().await?;
    let away = client.get("/hosts").await?;
    assert_eq!(away.status, 503);
    away.shows(&["The database is away"]);
    console.site.postgres().start_again().await?;
    back(&client).await
}

#[tokio::test]
async fn the_console_survives_a_stalled_database() -> Result<()> {
    let (mut console, client) = on_own_server().await?;
    console.site.postgres().freeze()?;
    assert_eq!(client.status("/hosts").await?, 503);
    assert_eq!(client.status("/sign-in").await?, 503);
    assert!(client.get("/install.sh").await?.has("main \"$@\""));
    console.site.postgres().thaw()?;
    back(&client).await
}

#[tokio::test]
async fn the_console_follows_its_database_to_another_server() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    let standby = site.postgres().standby().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let mut console = Console::on(site, &[("DATABASE_URL", url)]).await?;
    seed_hosts(&console.site, 1).await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let host = console.site.psql("SELECT id FROM hosts").await?;
    let path = format!("/hosts/{host}/note");
    assert_eq!(client.submit(&path, &[("note", "before")]).await?, 303);
    let arrived = "SELECT count(*) FROM host_events";
    eventually("the standby has the note", async || {
        let count = standby.psql("svc", arrived).await;
        count.is_ok_and(|count| count == "1")
    })
    .await?;
    console.site.postgres().set_read_only(true).await?;
    standby.promote().await?;
    proxy.set_targets(vec![([127, 0, 0, 1], standby.port()).into()]);
    proxy.cut_all();
    let _old = console.site.replace_postgres(standby);
    eventually("notes are written on the new server", async || {
        let status = client.submit(&path, &[("note", "after")]).await;
        status.is_ok_and(|status| status == 303)
    })
    .await?;
    let page = client.get(&format!("/hosts/{host}")).await?;
    page.shows(&["before", "after"]);
    Ok(())
}

#[tokio::test]
async fn a_console_that_is_restarted_or_killed_keeps_people_signed_in() -> Result<()> {
    let mut console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    console.stop().await?;
    let restarted = console.start_process().await?;
    assert_eq!(client.status("/hosts").await?, 200);
    restarted.kill().await?;
    assert!(client.get("/hosts").await.is_err(), "nobody answers");
    let _again = console.start_process().await?;
    assert_eq!(client.status("/hosts").await?, 200);
    Ok(())
}

#[tokio::test]
async fn commands_add_people_check_health_and_report_wrong_settings_together() -> Result<()> {
    let console = Console::start().await?;
    let program = console.program()?;
    let run = async |line: &str| program.clone().arguments(line.split(' ')).run().await;
    let added = run("user add ann --role admin").await?;
    assert_contains(&added.stdout, "/welcome#");
    let twice = run("user add ann").await?;
    assert_eq!(twice.code, Some(1), "{twice:?}");
    assert_contains(&twice.stderr, "already");
    let list = run("user list").await?;
    assert_contains(&list.stdout, "ann");
    assert_contains(&list.stdout, "admin     no password yet");
    let health = run("healthcheck").await?;
    assert_eq!(health.code, Some(0), "{health:?}");
    let wrong = [("CONSOLE_PORT", "x"), ("CONSOLE_BASE_URL", "ftp://x")];
    let wrong = program.environment(wrong).run().await?;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert_contains(&wrong.stderr, "CONSOLE_PORT: ");
    assert_contains(&wrong.stderr, "CONSOLE_BASE_URL: ");
    Ok(())
}

/// The package of the console was upgraded before the service's.
#[tokio::test]
async fn a_console_that_is_newer_than_the_schema_says_so_and_recovers() -> Result<()> {
    const SENTENCE: &str = "atabase's schema is older than this console: run svc-ingest migrate";
    let console = Console::start().await?;
    let mut client = console.signed_in("ann", Role::Viewer).await?;
    let older = "CREATE TABLE kept AS TABLE schema_migrations; DELETE FROM schema_migrations WHERE version = 1";
    console.site.psql(older).await?;
    let newer = console.beside().await?;
    client.address = newer.address;
    eventually("it says so", async || {
        let health = client.get("/healthz").await;
        health.is_ok_and(|health| health.status == 503 && health.has(SENTENCE))
    })
    .await?;
    for path in ["/", "/hosts", "/approvals", "/sign-in", "/api/v1/notes"] {
        let page = client.get(path).await?;
        assert_eq!(page.status, 503, "{path}");
        assert!(
            page.body.replace("&#39;", "'").contains(SENTENCE),
            "{path}: {page:?}"
        );
    }
    assert_eq!(client.status("/favicon.svg").await?, 200);
    let migrated = "INSERT INTO schema_migrations SELECT * FROM kept";
    console.site.psql(migrated).await?;
    eventually("the pages are back", async || {
        client
            .status("/hosts")
            .await
            .is_ok_and(|status| status == 200)
    })
    .await?;
    assert_eq!(client.get("/healthz").await?.body, "ok");
    Ok(())
}

#[tokio::test]
async fn releases_and_the_install_script_are_served() -> Result<()> {
    let releases = tempfile::tempdir()?;
    let folder = releases.path().join("0.10.0/linux/x86_64");
    std::fs::create_dir_all(&folder)?;
    for other in ["0.9.0", "0.10.0-rc.1", ".new-0.11.0", "latest"] {
        std::fs::create_dir_all(releases.path().join(other))?;
    }
    std::fs::write(folder.join("svc-agent"), "a binary")?;
    let site = Site::new().await?;
    let pinned = site.path("server.crt").display().to_string();
    let downloads = releases.path().display().to_string();
    let set = [
        ("CONSOLE_DOWNLOAD_DIR", downloads),
        ("CONSOLE_INGEST_ADDRESS", "ingest.example:9443".into()),
        ("CONSOLE_INGEST_CA", pinned),
    ];
    let console = Console::on(site, &set).await?;
    let client = console.client();
    let path = "/download/svc-agent/0.10.0/linux/x86_64/svc-agent";
    assert_eq!(client.get(path).await?.body, "a binary");
    let sum = async || client.get(&format!("{path}.sha256")).await;
    for _ in 0..2 {
        assert_eq!(
            sum().await?.body,
            "a31362f60e9c65899145b6d69e92ceb0ae73fdc3a44f91dd654c9301548c4f5f  svc-agent\n"
        );
    }
    std::fs::write(folder.join("svc-agent"), "another binary")?;
    assert_eq!(
        sum().await?.body,
        "8f299512c037b0309d4e2635464db03d5e81b7000c279735a169e0dd0a7612c4  svc-agent\n"
    );
    for missing in [
        "0.11.0/linux/x86_64/svc-agent",
        "..%2f..%2fetc/a/b/svc-agent",
        "0.10.0/linux/x86_64/passwd",
        "0.10.0/SHA256SUMS",
        "0.10.0/linux",
    ] {
        let path = format!("/download/svc-agent/{missing}");
        assert_eq!(client.status(&path).await?, 404, "{missing}");
    }
    let script = client.get("/install.sh").await?;
    script.shows(&[
        "INGEST_ADDRESS='ingest.example:9443'",
        ":-0.10.0}",
        "BEGIN CERTIFICATE",
        "main \"$@\"",
    ]);
    let file = releases.path().join("install.sh");
    std::fs::write(&file, &script.body)?;
    let mut check = std::process::Command::new("sh");
    let checked = check.arg("-n").arg(&file).status()?;
    assert!(checked.success(), "the script has a fault of syntax");
    Ok(())
}
