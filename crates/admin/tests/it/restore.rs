//! A restore from a backup, with an agent that was acknowledged more than the backup has.

use anyhow::{Result, ensure};
use svc_sandbox::query;
use svc_testkit::{ActiveAgent, Site};
use tokio::process::Command;
use url::Url;

async fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().await?;
    ensure!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The agent reports to an instance on the restored database. It has forgotten 6 to 8, which were acknowledged to it after
/// the backup.
async fn goes_on(site: &Site, agent: &ActiveAgent, restored: &str) -> Result<()> {
    let instance = site.instance().set("DATABASE_URL", restored);
    let instance = instance.start().await?;
    let mut call = agent.heartbeat_at(instance.grpc).await?;
    assert_eq!(call.welcome.acked_seq, 5, "the backup ends here");
    call.report_acked(9..=9).await?;
    let gaps = "SELECT first_seq, last_seq, kind FROM metric_gaps";
    assert_eq!(query(restored, gaps).await?, "6|8|not sent");
    let books =
        "SELECT acked_seq, stored_count, (SELECT count(*) FROM host_metrics) FROM agent_state";
    assert_eq!(query(restored, books).await?, "9|6|6");
    drop(call);
    instance.stop().await
}

#[tokio::test]
async fn a_restored_dump_loses_what_came_after_it_and_the_books_say_so() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    let (instance, agent) = site.instance().with_agent(&site).await?;
    let mut call = agent.heartbeat().await?;
    call.report_acked(1..=5).await?;
    let (url, dump) = (site.database_url(), site.path("svc.dump"));
    let dump = dump.to_string_lossy().into_owned();
    run("pg_dump", &["--format=custom", "--file", &dump, &url]).await?;
    call.report_acked(6..=8).await?;
    instance.stop().await?;

    site.postgres().create_database("restored", None).await?;
    let restored = site.postgres().url("restored");
    run("pg_restore", &["--dbname", &restored, &dump]).await?;
    goes_on(&site, &agent, &restored).await
}

#[tokio::test]
async fn a_restored_base_backup_loses_what_came_after_it_and_the_books_say_so() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    let (instance, agent) = site.instance().with_agent(&site).await?;
    let mut call = agent.heartbeat().await?;
    call.report_acked(1..=5).await?;
    let backup = site.postgres().restored().await?;
    call.report_acked(6..=8).await?;
    instance.stop().await?;

    let mut restored = Url::parse(&site.database_url())?;
    ensure!(restored.set_port(Some(backup.port())).is_ok());
    goes_on(&site, &agent, restored.as_str()).await
}
