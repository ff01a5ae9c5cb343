//! PostgreSQL: started, shared, stopped, frozen.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use svc_sandbox::{Postgres, PostgresOptions, test_database};
use tokio::time::timeout;

#[tokio::test]
async fn a_server_keeps_its_data_over_a_crash_and_leaves_nothing_behind() {
    let mut postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    postgres
        .psql(
            "postgres",
            "CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, NULL)",
        )
        .await
        .unwrap();
    let port = postgres.port();
    postgres.stop_immediate().await.unwrap();
    assert!(postgres.psql("postgres", "SELECT 1").await.is_err());

    postgres.start_again().await.unwrap();
    assert_eq!(postgres.port(), port);
    assert_eq!(
        postgres
            .psql("postgres", "SELECT * FROM t ORDER BY a")
            .await
            .unwrap(),
        "1|x\n2|"
    );

    let data_dir = postgres.data_dir().to_owned();
    drop(postgres);
    assert!(!data_dir.parent().unwrap().exists());
}

#[tokio::test]
async fn a_given_folder_is_kept_and_used_again_by_another_path() {
    let parent = crate::traversable_folder();
    let options = |path: &str| PostgresOptions {
        data_dir: Some(parent.path().join(path)),
        durable: true,
        ..PostgresOptions::default()
    };
    let postgres = Postgres::start(options("data")).await.unwrap();
    postgres
        .psql("postgres", "CREATE TABLE kept ()")
        .await
        .unwrap();
    drop(postgres);
    let again = Postgres::start(options("data/../data")).await.unwrap();
    again.psql("postgres", "TABLE kept").await.unwrap();
    assert_eq!(again.psql("postgres", "SHOW fsync").await.unwrap(), "on");
}

#[tokio::test]
async fn a_server_that_cannot_start_fails_at_once_with_its_log() {
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let options = PostgresOptions {
        settings,
        ..PostgresOptions::default()
    };
    let start = timeout(Duration::from_secs(10), Postgres::start(options))
        .await
        .unwrap();
    let error = start.unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn a_taken_port_is_an_error_and_its_server_is_not_mistaken_for_ours() {
    let other = svc_sandbox::shared_postgres().await.unwrap();
    let options = PostgresOptions {
        port: Some(other.port()),
        ..PostgresOptions::default()
    };
    let error = Postgres::start(options).await.unwrap_err().to_string();
    assert!(error.contains("Address already in use"), "{error}");
}

#[test]
fn a_server_can_be_started_and_used_from_any_task() {
    fn assert_send<T: Send>(_: T) {}
    assert_send(Postgres::start(PostgresOptions::default()));
    assert_send(svc_sandbox::Nats::start(svc_sandbox::NatsOptions::default()));
    assert_send(test_database("never", async |_| Ok(())));
}

#[tokio::test]
async fn a_frozen_server_answers_nothing_until_it_thaws() {
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&postgres.url("postgres"), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);

    postgres.freeze().unwrap();
    let question = client.simple_query("SELECT 1");
    tokio::pin!(question);
    assert!(
        timeout(Duration::from_millis(300), &mut question)
            .await
            .is_err(),
        "a backend ran on"
    );
    postgres.thaw().unwrap();
    timeout(Duration::from_secs(10), question)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_template_is_prepared_once_and_every_test_has_its_own_clone() {
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
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(PREPARED.load(Ordering::SeqCst), 1);
    assert_ne!(one.url(), two.url());

    let server = svc_sandbox::shared_postgres().await.unwrap();
    server
        .psql(one.name(), "INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    assert_eq!(
        server
            .psql(two.name(), "SELECT count(*) FROM t")
            .await
            .unwrap(),
        "0"
    );
}
