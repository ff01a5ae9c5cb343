//! The LISTEN connection.

use std::time::Duration;

use anyhow::Result;
use svc_store::{DatabaseUrl, Listener};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::support::*;

async fn assert_next(listener: &mut Listener, payload: &str) -> Result<()> {
    let next = timeout(PATIENCE, listener.recv()).await??;
    assert_eq!(next.as_deref(), Some(payload));
    Ok(())
}

#[tokio::test]
async fn notifications_arrive_in_order_after_the_commit() -> Result<()> {
    let store = empty().await?;
    let mut listener = store.listen(&store.direct()?, "odd \"channel").await?;
    let one = "NOTIFY \"odd \"\"channel\", 'one'; NOTIFY other, 'not mine'";
    store.sql(one).await?;
    store.sql("NOTIFY \"odd \"\"channel\", 'two'").await?;
    assert_next(&mut listener, "one").await?;
    assert_next(&mut listener, "two").await?;
    let cancelled = timeout(Duration::from_millis(100), listener.recv()).await;
    assert!(cancelled.is_err());
    store.sql("NOTIFY \"odd \"\"channel\", 'three'").await?;
    assert_next(&mut listener, "three").await
}

#[tokio::test]
async fn a_lost_connection_is_an_error_and_a_new_one_works() -> Result<()> {
    let store = empty().await?;
    let (_, server) = store.url().split_once('@').expect("a user");
    let server = server.split('/').next().expect("an address").to_owned();
    let relay = TcpListener::bind("127.0.0.1:0").await?;
    let relayed = store
        .url()
        .replace(&server, &relay.local_addr()?.to_string());
    let passing = tokio::spawn(async move {
        let (mut client, _) = relay.accept().await?;
        let mut server = TcpStream::connect(server).await?;
        copy_bidirectional(&mut client, &mut server).await
    });
    let relayed = DatabaseUrl::parse(&relayed)?;
    let mut listener = store.listen(&relayed, "changes").await?;
    passing.abort();
    let error = timeout(PATIENCE, listener.recv()).await?.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let mut listener = store.listen(&store.direct()?, "changes").await?;
    store.sql("NOTIFY changes, 'again'").await?;
    assert_next(&mut listener, "again").await
}

#[tokio::test]
async fn connecting_to_a_silent_server_times_out() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    let text = format!("postgres://u@{address}/d?connect_timeout=1");
    let store = TestStore::open(&text, 4)?;
    let outcome = timeout(PATIENCE, store.listen(&store.direct()?, "changes")).await?;
    assert!(outcome.unwrap_err().is_unavailable());
    Ok(())
}
