//! The LISTEN connection.

use std::time::Duration;

use anyhow::Result;
use svc_sandbox::shared_postgres;
use svc_store::DatabaseUrl;
use svc_testkit::Proxy;
use tokio::{net::TcpListener, time::timeout};

use crate::support::{PATIENCE, TestStore, empty};

#[tokio::test]
async fn notifications_arrive_in_order_after_the_commit() -> Result<()> {
    let store = empty().await?;
    let url = DatabaseUrl::parse(store.url())?;
    let mut listener = store.listen(&url, "odd \"channel").await?;
    let one = "NOTIFY \"odd \"\"channel\", 'one'; NOTIFY other, 'not mine'";
    store.sql(one).await?;
    store.sql("NOTIFY \"odd \"\"channel\", 'two'").await?;
    assert_eq!(
        timeout(PATIENCE, listener.recv()).await??.as_deref(),
        Some("one")
    );
    assert_eq!(
        timeout(PATIENCE, listener.recv()).await??.as_deref(),
        Some("two")
    );
    let cancelled = timeout(Duration::from_millis(100), listener.recv()).await;
    assert!(cancelled.is_err());
    store.sql("NOTIFY \"odd \"\"channel\", 'three'").await?;
    assert_eq!(
        timeout(PATIENCE, listener.recv()).await??.as_deref(),
        Some("three")
    );
    Ok(())
}

#[tokio::test]
async fn a_lost_connection_is_an_error_and_a_new_one_works() -> Result<()> {
    let server = shared_postgres().await?;
    let proxy = Proxy::start(vec![([127, 0, 0, 1], server.port()).into()]).await?;
    let text = format!("postgres://svc@{}/postgres", proxy.address());
    let url = DatabaseUrl::parse(&text)?;
    let store = TestStore::open(&text, 4)?;
    let mut listener = store.listen(&url, "changes").await?;
    proxy.cut_all();
    let error = timeout(PATIENCE, listener.recv()).await?.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let mut listener = store.listen(&url, "changes").await?;
    store.sql("NOTIFY changes, 'again'").await?;
    assert_eq!(
        timeout(PATIENCE, listener.recv()).await??.as_deref(),
        Some("again")
    );
    Ok(())
}

#[tokio::test]
async fn connecting_to_a_silent_server_times_out() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    let text = format!("postgres://u@{address}/d?connect_timeout=1");
    let (store, url) = (TestStore::open(&text, 4)?, DatabaseUrl::parse(&text)?);
    let outcome = timeout(PATIENCE, store.listen(&url, "changes")).await?;
    assert!(outcome.unwrap_err().is_unavailable());
    Ok(())
}
