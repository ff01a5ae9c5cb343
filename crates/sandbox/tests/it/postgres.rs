//! PostgreSQL: started, shared, stopped, frozen.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::Result;
use svc_sandbox::{Postgres, PostgresOptions, test_database};
use tokio::time::timeout;

#[tokio::test]
async fn a_server_keeps_its_data_over_a_crash_and_leaves_nothing_behind() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let sql = "CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, NULL)";
    postgres.psql("postgres", sql).await?;
    let port = postgres.port();
    postgres.stop_immediate().await?;
    assert!(postgres.psql("postgres", "SELECT 1").await.is_err());

    postgres.start_again().await?;
    assert_eq!(postgres.port(), port);
    let sql = "SELECT * FROM t ORDER BY a";
    assert_eq!(postgres.psql("postgres", sql).await?, "1|x\n2|");

    let data_dir = postgres.data_dir().to_owned();
    drop(postgres);
    assert!(!data_dir.parent().unwrap().exists());
    Ok(())
}

#[tokio::test]
async fn a_given_folder_is_kept_and_used_again_by_another_path() -> Result<()> {
    let parent = crate::traversable_folder();
    let options = |path: &str| PostgresOptions {
        data_dir: Some(parent.path().join(path)),
        durable: true,
        ..PostgresOptions::default()
    };
    let postgres = Postgres::start(options("data")).await?;
    postgres.psql("postgres", "CREATE TABLE kept ()").await?;
    drop(postgres);
    let again = Postgres::start(options("data/../data")).await?;
    again.psql("postgres", "TABLE kept").await?;
    assert_eq!(again.psql("postgres", "SHOW fsync").await?, "on");
    Ok(())
}

#[tokio::test]
async fn a_server_that_cannot_start_fails_at_once_with_its_log() -> Result<()> {
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let options = PostgresOptions {
        settings,
        ..PostgresOptions::default()
    };
    let start = timeout(Duration::from_secs(25), Postgres::start(options)).await?;
    let error = start.unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_taken_port_is_an_error_and_its_server_is_not_mistaken_for_ours() -> Result<()> {
    let other = svc_sandbox::shared_postgres().await?;
    let options = PostgresOptions {
        port: Some(other.port()),
        ..PostgresOptions::default()
    };
    let error = Postgres::start(options).await.unwrap_err().to_string();
    assert!(error.contains("Address already in use"), "{error}");
    Ok(())
}

#[test]
fn a_server_can_be_started_and_used_from_any_task() {
    fn assert_send<T: Send>(_: T) {}
    assert_send(Postgres::start(PostgresOptions::default()));
    assert_send(svc_sandbox::Nats::start(svc_sandbox::NatsOptions::default()));
    assert_send(test_database("never", async |_| Ok(())));
}

#[tokio::test]
async fn a_frozen_server_answers_nothing_until_it_thaws() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let url = postgres.url("postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);

    postgres.freeze()?;
    let question = client.simple_query("SELECT 1");
    tokio::pin!(question);
    let early = timeout(Duration::from_millis(300), &mut question).await;
    assert!(early.is_err(), "a backend ran on");
    postgres.thaw()?;
    timeout(Duration::from_secs(10), question).await??;
    Ok(())
}

#[tokio::test]
async fn a_template_is_prepared_once_and_every_test_has_its_own_clone() -> Result<()> {
    static PREPARED: AtomicU32 = AtomicU32::new(0);
    let prepare = async |url: String| {
        PREPARED.fetch_add(1, Ordering::SeqCst);
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.simple_query("CREATE TABLE t (a int)").await?;
        Ok(())
    };
    let (one, two) = tokio::join!(
        test_database("template_test", prepare),
        test_database("template_test", prepare)
    );
    let (one, two) = (one?, two?);
    assert_eq!(PREPARED.load(Ordering::SeqCst), 1);
    assert_ne!(one.url(), two.url());

    let server = svc_sandbox::shared_postgres().await?;
    server.psql(one.name(), "INSERT INTO t VALUES (1)").await?;
    let count = server.psql(two.name(), "SELECT count(*) FROM t").await?;
    assert_eq!(count, "0");
    Ok(())
}
