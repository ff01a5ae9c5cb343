//! The process: health, metrics, schema, faults of the database, and its commands.

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{Program, Site, eventually, faults::behind_proxy};

use crate::support::{Console, seed_hosts};

#[tokio::test]
async fn health_and_metrics_answer_and_metrics_are_not_for_outside() -> Result<()> {
    let console = Console::start().await?;
    let client = console.client();
    assert_eq!(client.get("/healthz").await?.body, "ok");
    let metrics = client.get("/metrics").await?;
    assert!(
        metrics.has("console_http_requests_total") && metrics.has("route=\"/healthz\""),
        "{metrics:?}"
    );
    let forwarded = client
        .send("GET", "/metrics", "X-Forwarded-For: 1.2.3.4\r\n", "")
        .await?;
    assert_eq!(forwarded.status, 404);
    Ok(())
}

#[tokio::test]
async fn the_schema_is_the_web_roles_own_and_every_object_has_a_comment() -> Result<()> {
    let console = Console::start().await?;
    let owner = console.site.psql("SELECT nspowner::regrole::text LIKE 'web_%' FROM pg_namespace WHERE nspname = 'console'").await?;
    assert_eq!(owner, "t");
    let bare = "SELECT coalesce(string_agg(relname || '.' || attname, ', '), '') FROM pg_class c
                  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'console'::regnamespace AND relkind = 'r'
                   AND (col_description(c.oid, attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)";
    console.site.expect(bare, "").await
}

#[tokio::test]
async fn the_console_survives_its_database() -> Result<()> {
    let site = Site::with_own_server().await?;
    let mut console = Console::on(site, &[]).await?;
    seed_hosts(&console.site, 3).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    assert_eq!(client.get("/hosts").await?.status, 200);
    console.site.postgres().stop_immediate().await?;
    let away = client.get("/hosts").await?;
    assert_eq!(away.status, 503);
    assert!(away.has("The database is away"), "{away:?}");
    console.site.postgres().start_again().await?;
    eventually(
        "the pages are back, and the session with them",
        async || {
            client
                .get("/hosts")
                .await
                .is_ok_and(|page| page.status == 200 && page.has("web-002"))
        },
    )
    .await
}

#[tokio::test]
async fn the_console_survives_a_stalled_database() -> Result<()> {
    let site = Site::with_own_server().await?;
    let mut console = Console::on(site, &[]).await?;
    seed_hosts(&console.site, 3).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    assert_eq!(client.get("/hosts").await?.status, 200);
    console.site.postgres().freeze()?;
    let stalled = client.get("/hosts").await?;
    assert_eq!(stalled.status, 503, "{stalled:?}");
    assert_eq!(client.get("/sign-in").await?.status, 503);
    assert!(client.get("/install.sh").await?.has("main \"$@\""));
    console.site.postgres().thaw()?;
    eventually("the pages are back", async || {
        let page = client.get("/hosts").await;
        page.is_ok_and(|page| page.status == 200 && page.has("web-002"))
    })
    .await
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
    assert_eq!(client.post(&path, &[("note", "before")]).await?.status, 303);
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
        let posted = client.post(&path, &[("note", "after")]).await;
        posted.is_ok_and(|page| page.status == 303)
    })
    .await?;
    let page = client.get(&format!("/hosts/{host}")).await?;
    assert!(page.has("before") && page.has("after"), "{page:?}");
    Ok(())
}

#[tokio::test]
async fn a_killed_console_comes_back_and_keeps_people_signed_in() -> Result<()> {
    let mut console = Console::start().await?;
    let process = console.run_as_process().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    process.kill().await?;
    assert!(client.get("/hosts").await.is_err(), "nobody answers");
    let program = Program::named("svc-console")?.environment(console.environment.clone());
    let _again = program.start()?;
    console.healthy().await?;
    assert_eq!(client.get("/hosts").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn the_service_page_says_that_the_keys_cannot_be_fetched() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    eventually("the page names the problem", async || {
        let page = client.get("/service").await;
        page.is_ok_and(|page| page.has("not fetched yet") && page.has("Connection refused"))
    })
    .await
}

#[tokio::test]
async fn a_restart_keeps_people_signed_in() -> Result<()> {
    let mut console = Console::start().await?;
    let cookie = console.signed_in("ann", Role::Viewer).await?.cookie;
    console.restart().await?;
    let mut client = console.client();
    client.cookie = cookie;
    assert_eq!(client.get("/hosts").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn commands_add_people_check_health_and_report_wrong_settings_together() -> Result<()> {
    let console = Console::start().await?;
    let program = Program::named("svc-console")?.environment(console.environment.clone());
    let added = program
        .clone()
        .arguments(["user", "add", "ann", "--role", "admin"])
        .run()
        .await?;
    assert!(added.stdout.contains("/welcome#"), "{added:?}");
    let twice = program
        .clone()
        .arguments(["user", "add", "ann"])
        .run()
        .await?;
    assert!(
        twice.code == Some(1) && twice.stderr.contains("already"),
        "{twice:?}"
    );
    let list = program.clone().arguments(["user", "list"]).run().await?;
    assert!(
        list.stdout.contains("ann") && list.stdout.contains("no password yet"),
        "{list:?}"
    );
    let health = program.clone().arguments(["healthcheck"]).run().await?;
    assert_eq!(health.code, Some(0), "{health:?}");
    let wrong = program
        .environment([("CONSOLE_PORT", "x"), ("CONSOLE_BASE_URL", "ftp://x")])
        .run()
        .await?;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(
        wrong.stderr.contains("CONSOLE_PORT: ") && wrong.stderr.contains("CONSOLE_BASE_URL: "),
        "{wrong:?}"
    );
    Ok(())
}

#[tokio::test]
async fn releases_and_the_install_script_are_served() -> Result<()> {
    let releases = tempfile::tempdir()?;
    let folder = releases.path().join("0.10.0/linux/x86_64");
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(releases.path().join("0.9.0"))?;
    std::fs::write(folder.join("svc-agent"), "a binary")?;
    let set = [
        (
            "CONSOLE_DOWNLOAD_DIR",
            releases.path().display().to_string(),
        ),
        ("CONSOLE_INGEST_ADDRESS", "ingest.example:9443".into()),
    ];
    let site = Site::new().await?;
    let pinned = site.path("server.crt").display().to_string();
    let set = [set.as_slice(), &[("CONSOLE_INGEST_CA", pinned)]].concat();
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
        "/download/svc-agent/0.11.0/linux/x86_64/svc-agent",
        "/download/svc-agent/..%2f..%2fetc/a/b/svc-agent",
        "/download/svc-agent/0.10.0/linux/x86_64/passwd",
    ] {
        assert_eq!(client.get(missing).await?.status, 404, "{missing}");
    }
    let script = client.get("/install.sh").await?;
    for part in [
        "INGEST_ADDRESS='ingest.example:9443'",
        ":-0.10.0}",
        "BEGIN CERTIFICATE",
        "main \"$@\"",
    ] {
        assert!(script.has(part), "{part}");
    }
    let file = releases.path().join("install.sh");
    std::fs::write(&file, &script.body)?;
    let checked = std::process::Command::new("sh")
        .arg("-n")
        .arg(&file)
        .status()?;
    assert!(checked.success(), "the script has a fault of syntax");
    Ok(())
}
