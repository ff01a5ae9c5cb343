//! INGEST_WEB_ROLE, which `migrate` and `serve` grant. The tests of the store check its privileges.

use anyhow::Result;
use svc_testkit::{Site, assert_contains, faults};

use super::command;

/// Whether the role may decide. Roles belong to the whole server, so each test has its own.
async fn may_decide(site: &Site, role: &str) -> Result<bool> {
    let sql = format!(
        "SELECT has_function_privilege('{role}', 'approve_agent(uuid, text, text, text, text)', 'EXECUTE')"
    );
    Ok(site.psql(&sql).await? == "t")
}

#[tokio::test]
async fn migrate_grants_the_role() -> Result<()> {
    let site = Site::new().await?;
    site.psql("CREATE ROLE web_of_migrate").await?;
    assert!(!may_decide(&site, "web_of_migrate").await?);
    for _ in 0..2 {
        let migrate = command(&site, &["migrate", "--output", "json"]);
        let migrate = migrate.set("INGEST_WEB_ROLE", "web_of_migrate");
        let ended = migrate.exits(0).await?;
        let report: serde_json::Value = serde_json::from_str(&ended.stdout)?;
        assert_eq!(report["web_role"], "web_of_migrate");
    }
    assert!(may_decide(&site, "web_of_migrate").await?);
    Ok(())
}

#[tokio::test]
async fn serve_grants_the_role_only_if_it_may_migrate() -> Result<()> {
    let site = Site::new().await?;
    site.psql("CREATE ROLE web_of_serve").await?;
    let serve = |auto: &str| {
        site.process()
            .set("INGEST_WEB_ROLE", "web_of_serve")
            .set("INGEST_AUTO_MIGRATE", auto)
    };
    let verifying = serve("false").start().await?;
    verifying.stop().await?;
    assert_contains(&verifying.logs(), "lacks grants");
    assert!(!may_decide(&site, "web_of_serve").await?);
    serve("true").start().await?.stop().await?;
    assert!(may_decide(&site, "web_of_serve").await?);
    Ok(())
}

#[tokio::test]
async fn instances_that_start_at_once_on_an_empty_database_all_serve() -> Result<()> {
    faults::first_starts_with_web_role(3).await.map(drop)
}

#[tokio::test]
async fn a_role_that_does_not_exist_is_a_problem_of_its_variable() -> Result<()> {
    let site = Site::new().await?;
    for process in [
        command(&site, &["migrate"]),
        site.process(),
        site.process().set("INGEST_AUTO_MIGRATE", "false"),
    ] {
        let process = process.set("INGEST_WEB_ROLE", "no_such_role");
        let ended = process.exits(2).await?;
        let problem = "svc-ingest: INGEST_WEB_ROLE: there is no PostgreSQL role \"no_such_role\"";
        assert_contains(&ended.stderr, problem);
    }
    Ok(())
}
