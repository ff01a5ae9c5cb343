//! The LISTEN connection.

use std::time::Duration;

use anyhow::Result;
use svc_sandbox::shared_postgres;
use svc_store::{DatabaseUrl, Listener};
use svc_testkit::Proxy;
use tokio::{net::TcpListener, time::timeout};

use crate::support::{PATIENCE, TestStore, empty};

#[tokio::test]
async fn notifications_arrive_in_order_after_the_commit() -> Result<()> {
    let store = empty().await?;
    let url = DatabaseUrl::parse(store.url())?;
    let mut listener = Listener::connect(&url, "odd \"channel").await?;
    let one = "NOTIFY \"odd \"\"channel\", 'one'; NOTIFY other, 'not mine'";
    store.sql(one).await?;
    store.sql("NOTIFY \"odd \"\"channel\", 'two'").await?;
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "one");
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "two");
    let cancelled = timeout(Duration::from_millis(100), listener.recv()).await;
    assert!(cancelled.is_err());
    store.sql("NOTIFY \"odd \"\"channel\", 'three'").await?;
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "three");
    Ok(())
}

#[tokio::test]
async fn a_lost_connection_is_an_error_and_a_new_one_works() -> Result<()> {
    let server = shared_postgres().await?;
    let proxy = Proxy::start(vec![([127, 0, 0, 1], server.port()).into()]).await?;
    let text = format!("postgres://svc@{}/postgres", proxy.address());
    let url = DatabaseUrl::parse(&text)?;
    let mut listener = Listener::connect(&url, "changes").await?;
    proxy.cut_all();
    let error = timeout(PATIENCE, listener.recv()).await?.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let mut listener = Listener::connect(&url, "changes").await?;
    let store = TestStore::open(&text, 3)?;
    store.sql("NOTIFY changes, 'again'").await?;
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "again");
    Ok(())
}

#[tokio::test]
async fn connecting_to_a_silent_server_times_out() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    let url = DatabaseUrl::parse(&format!("postgres://u@{address}/d?connect_timeout=1"))?;
    let outcome = timeout(PATIENCE, Listener::connect(&url, "changes")).await?;
    assert!(outcome.unwrap_err().is_unavailable());
    Ok(())
}
