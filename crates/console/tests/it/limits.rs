//! What one client may ask for: guesses, sizes, times, connections.

use std::net::SocketAddr;

use anyhow::Result;
use svc_store::Role;
use svc_testkit::{PATIENCE, Site};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::support::{Client, Console, Page};

#[tokio::test]
async fn guessing_passwords_is_slowed_down_and_does_not_end_sessions() -> Result<()> {
    let console = Console::start().await?;
    let signed_in = console.signed_in("ann", Role::Viewer).await?;
    let stranger = console.client();
    // All at once: on a slow machine, guesses one after the other would be slow by themselves.
    let mut guesses = tokio::task::JoinSet::new();
    for guess in 0..12 {
        let stranger = stranger.clone();
        guesses.spawn(async move {
            let password = format!("guess number {guess}");
            let fields = [("name", "ann"), ("password", password.as_str())];
            stranger.post("/sign-in", &fields).await
        });
    }
    let answers = guesses.join_all().await;
    let limited = answers
        .iter()
        .filter(|answer| answer.as_ref().is_ok_and(|page| page.status == 429));
    assert!(limited.count() >= 5, "{answers:?}");
    assert_eq!(signed_in.get("/").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn large_bodies_and_heads_are_refused() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    let large = "x".repeat(300 * 1024);
    assert_eq!(
        client.post("/tokens", &[("label", &large)]).await?.status,
        413
    );
    let head = format!("X-Large: {}\r\n", "x".repeat(200 * 1024));
    let refused = client.send("GET", "/", &head, "").await;
    assert!(refused.is_err() || refused.is_ok_and(|page| page.status == 431));
    assert_eq!(client.get("/").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_request_that_is_never_finished_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let mut slow = TcpStream::connect(console.address).await?;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await?;
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
    Ok(())
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Admin).await?;
    let mut slow = TcpStream::connect(console.address).await?;
    let cookie = client.cookie.clone().unwrap();
    let head = format!(
        "POST /tokens HTTP/1.1\r\nHost: {}\r\nOrigin: {}\r\nCookie: {cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nlabel=",
        console.origin.trim_start_matches("http://"),
        console.origin
    );
    slow.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection is still open");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    Ok(())
}

/// Sends guesses at a password, all at once, and counts those that were refused for their number.
async fn limited(
    stranger: &Client,
    guesses: u8,
    name: fn(u8) -> String,
    headers: fn(u8) -> String,
) -> Result<usize> {
    let mut answers = JoinSet::new();
    for guess in 0..guesses {
        let stranger = stranger.clone();
        let headers = format!(
            "{}Sec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\n",
            headers(guess)
        );
        let form = format!("name={}&password=guess+number+{guess}", name(guess));
        answers.spawn(async move { stranger.send("POST", "/sign-in", &headers, &form).await });
    }
    let answers: Result<Vec<Page>> = answers.join_all().await.into_iter().collect();
    let limited = answers?.into_iter().filter(|answer| answer.status == 429);
    Ok(limited.count())
}

#[tokio::test]
async fn a_claimed_address_escapes_no_limit() -> Result<()> {
    let console = Console::start().await?;
    let claim = |guess| format!("X-Forwarded-For: 10.0.0.{guess}\r\n");
    let limited = limited(&console.client(), 12, |_| "ann".into(), claim).await?;
    assert!(limited >= 5, "{limited}");
    Ok(())
}

/// Behind a proxy that is trusted, the addresses are the clients' own.
#[tokio::test]
async fn one_address_that_guesses_many_names_slows_down_only_itself() -> Result<()> {
    let set = [("CONSOLE_TRUSTED_PROXIES", "127.0.0.1".to_owned())];
    let console = Console::on(Site::new().await?, &set).await?;
    let guesser = |_| "X-Forwarded-For: 10.0.0.1\r\n".to_owned();
    let names = |guess| format!("person-{guess}");
    let many = limited(&console.client(), 60, names, guesser).await?;
    assert!(many >= 5, "{many}");
    let other = |_| "X-Forwarded-For: 10.0.0.2\r\n".to_owned();
    let others = limited(&console.client(), 3, names, other).await?;
    assert_eq!(others, 0);
    Ok(())
}

async fn connect_from(source: [u8; 4], to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    Ok(socket.connect(to).await?)
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() -> Result<()> {
    let console = Console::start().await?;
    let mut idle = Vec::new();
    for _ in 0..256 {
        idle.push(connect_from([127, 0, 0, 9], console.address).await?);
    }
    let mut beyond = connect_from([127, 0, 0, 9], console.address).await?;
    let mut answer = Vec::new();
    let closed = timeout(PATIENCE, beyond.read_to_end(&mut answer)).await?;
    assert!(closed.is_err() || answer.is_empty(), "it was served");
    assert_eq!(console.client().get("/healthz").await?.status, 200);
    Ok(())
}
