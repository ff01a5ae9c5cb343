//! What a start requires of the database, and how it uses what it is given: any schema, and one role or two.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use svc_sandbox::query;
use svc_testkit::{ActiveAgent, Site, assert_contains, sample};

use crate::commands::output_of;

/// Makes these the first schemas of every connection to the site's database.
async fn set_search_path(site: &Site, schemas: &str) -> Result<()> {
    let sql = format!(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = {schemas}', current_database()); END $$"
    );
    site.psql(&sql).await.map(drop)
}

/// A role that may connect and nothing else, and its URL. Roles belong to the whole server, so each test
/// has its own.
async fn plain_role(site: &Site, prefix: &str) -> Result<(String, String)> {
    let name = format!("SELECT '{prefix}_' || current_database()");
    let role = site.psql(&name).await?;
    site.psql(&format!("CREATE ROLE {role} LOGIN")).await?;
    let url = site.database_url();
    let url = url.replacen("svc@", &format!("{role}@"), 1);
    Ok((role, url))
}

/// An agent connects, reports a sample, and has it rolled up.
async fn works(site: &Site, grpc: SocketAddr) -> Result<()> {
    let agent = ActiveAgent::new(site, grpc, 1).await?;
    let mut call = agent.heartbeat().await?;
    call.report(vec![sample(1)], vec![]).await?;
    call.acked_up_to(1).await?;
    let rolled_up = "SELECT sum(sample_count) FROM host_metrics_hourly";
    site.becomes(rolled_up, "1").await
}

#[tokio::test]
async fn the_schema_may_have_any_name() -> Result<()> {
    let site = Site::unmigrated().await?;
    site.psql("CREATE SCHEMA \"my Schema\"").await?;
    set_search_path(&site, "\"my Schema\"").await?;
    let (role, url) = plain_role(&site, "web").await?;
    let instance = site
        .instance()
        .timing(|timing| timing.compaction = Duration::from_millis(100))
        .set("INGEST_WEB_ROLE", &role);
    let instance = instance.start().await?;
    works(&site, instance.grpc).await?;
    let decision = "SELECT revoke_agent(id, 'ann') FROM agents";
    query(&url, decision).await?;
    site.expect("SELECT status FROM agents", "revoked").await?;
    assert_contains(&output_of(&site, &["status"]).await?, "1 revoked");
    let elsewhere = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    site.expect(elsewhere, "0").await?;
    instance.stop().await
}

#[tokio::test]
async fn a_database_that_does_not_fit_is_refused_before_anything_is_applied() -> Result<()> {
    let foreign = "CREATE TABLE schema_migrations (version varchar)";
    for (prepare, path, problem) in [
        ("SELECT", "nowhere", "has no current schema"),
        (foreign, "public", "schema_migrations of another program"),
    ] {
        let site = Site::unmigrated().await?;
        site.psql(prepare).await?;
        set_search_path(&site, path).await?;
        let failure = site.instance().launch().await?.failure().await?;
        assert_contains(&failure, "DATABASE_URL: ");
        assert_contains(&failure, problem);
        let applied = "SELECT to_regclass('public.ingest_instances')";
        site.expect(applied, "").await?;
    }
    Ok(())
}

#[tokio::test]
async fn tables_in_another_schema_than_the_current_one_are_refused() -> Result<()> {
    let site = Site::new().await?;
    site.psql("CREATE SCHEMA newer").await?;
    set_search_path(&site, "newer, public").await?;
    let failure = site.instance().launch().await?.failure().await?;
    let problem = "the tables are in schema \"public\", but the current schema is \"newer\"";
    assert_contains(&failure, problem);
    let ended = site.command_process(&["migrate"]).exits(2).await?;
    assert_contains(&ended.stderr, problem);
    Ok(())
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_it_needs() -> Result<()> {
    let empty = Site::unmigrated().await?;
    let (role, url) = plain_role(&empty, "stranger").await?;
    let instance = empty.instance().set("DATABASE_URL", url);
    let failure = instance.launch().await?.failure().await?;
    let grant = format!("GRANT USAGE, CREATE ON SCHEMA \"public\" TO {role:?}");
    assert_contains(&failure, &grant);

    let migrated = Site::new().await?;
    let (_, url) = plain_role(&migrated, "stranger").await?;
    let instance = migrated.instance().set("DATABASE_URL", url);
    let failure = instance.launch().await?.failure().await?;
    let advice = "connect as \"svc\", or set INGEST_OWNER_DATABASE_URL";
    assert_contains(&failure, "does not own the tables");
    assert_contains(&failure, advice);
    Ok(())
}

#[tokio::test]
async fn the_service_works_as_a_role_that_owns_nothing() -> Result<()> {
    let site = Site::unmigrated().await?;
    let (role, url) = plain_role(&site, "runtime").await?;
    let two_roles = |auto_migrate: &str| {
        site.instance()
            .timing(|timing| timing.compaction = Duration::from_millis(100))
            .set("DATABASE_URL", &url)
            .set("INGEST_OWNER_DATABASE_URL", site.database_url())
            .set("INGEST_AUTO_MIGRATE", auto_migrate)
    };
    let instance = two_roles("true").start().await?;
    works(&site, instance.grpc).await?;
    let status = site.command_process(&["status"]).set("DATABASE_URL", &url);
    assert_contains(&status.run().await?.stdout, "1 active");
    instance.stop().await?;
    let owned = format!("SELECT count(*) FROM pg_class WHERE relowner = '{role}'::regrole");
    site.expect(&owned, "0").await?;
    let created = query(&url, "CREATE TABLE mine ()").await;
    assert!(created.is_err(), "the role may create tables");

    two_roles("false").start().await?.stop().await?;
    site.psql(&format!("REVOKE INSERT ON agents FROM {role}"))
        .await?;
    let failure = two_roles("false").launch().await?.failure().await?;
    assert_contains(&failure, "lacks rights: run `svc-ingest migrate`");
    let migrate = site
        .command_process(&["migrate"])
        .set("DATABASE_URL", &url)
        .set("INGEST_OWNER_DATABASE_URL", site.database_url());
    migrate.exits(0).await?;
    two_roles("false").start().await?.stop().await
}
