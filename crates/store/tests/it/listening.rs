//! The LISTEN connection.

use anyhow::Result;
use svc_sandbox::{Proxy, shared_postgres};
use svc_store::{DatabaseUrl, Listener};
use tokio::time::{Duration, timeout};

use crate::support::{PATIENCE, batch, empty, open, options};

#[tokio::test]
async fn notifications_arrive_in_order_after_the_commit() -> Result<()> {
    let (database, store) = empty().await?;
    let url = DatabaseUrl::parse(database.url())?;
    let mut listener = Listener::connect(&url, "odd \"channel").await?;
    batch(
        &store,
        "NOTIFY \"odd \"\"channel\", 'one'; NOTIFY other, 'not mine'",
    )
    .await?;
    batch(&store, "NOTIFY \"odd \"\"channel\", 'two'").await?;
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "one");
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "two");
    assert!(
        timeout(Duration::from_millis(100), listener.recv())
            .await
            .is_err()
    );
    batch(&store, "NOTIFY \"odd \"\"channel\", 'three'").await?;
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
    batch(&open(&text, options(3))?, "NOTIFY changes, 'again'").await?;
    assert_eq!(timeout(PATIENCE, listener.recv()).await??, "again");
    Ok(())
}

#[tokio::test]
async fn a_server_that_says_nothing_does_not_hold_us() -> Result<()> {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    let url = DatabaseUrl::parse(&format!("postgres://u@{address}/d?connect_timeout=1"))?;
    let outcome = timeout(PATIENCE, Listener::connect(&url, "changes")).await?;
    assert!(outcome.unwrap_err().is_unavailable());
    Ok(())
}
