//! What one client may ask for: guesses, sizes, times, connections.

use anyhow::{Context, Result};
use svc_store::Role;
use svc_testkit::{PATIENCE, Site};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::support::{Client, Console, Page};

/// Sends guesses at a password, all at once, and counts those that were refused for their number. One after the other they
/// would be slow by themselves on a slow machine.
async fn limited(
    stranger: &Client,
    guesses: u8,
    name: fn(u8) -> String,
    headers: fn(u8) -> String,
) -> Result<usize> {
    let mut answers = JoinSet::new();
    for guess in 0..guesses {
        let stranger = stranger.clone();
        let headers = headers(guess) + &stranger.same_origin();
        let form = format!("name={}&password=guess+number+{guess}", name(guess));
        answers.spawn(async move { stranger.send("POST", "/sign-in", &headers, &form).await });
    }
    let answers: Result<Vec<Page>> = answers.join_all().await.into_iter().collect();
    let limited = answers?.into_iter().filter(|answer| answer.status == 429);
    Ok(limited.count())
}

#[tokio::test]
async fn guessing_passwords_is_slowed_down_and_does_not_end_sessions() -> Result<()> {
    let console = Console::start().await?;
    let signed_in = console.signed_in("ann", Role::Viewer).await?;
    let limited = limited(&console.client(), 12, |_| "ann".into(), |_| String::new()).await?;
    assert!(limited >= 5, "{limited}");
    assert_eq!(signed_in.status("/").await?, 200);
    Ok(())
}

#[tokio::test]
async fn large_bodies_and_heads_are_refused() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let large = "x".repeat(300 * 1024);
    let status = client.submit("/tokens", &[("label", &large)]).await?;
    assert_eq!(status, 413);
    let head = format!("X-Large: {}\r\n", "x".repeat(200 * 1024));
    let refused = client.send("GET", "/", &head, "").await;
    assert!(refused.is_err() || refused.is_ok_and(|page| page.status == 431));
    assert_eq!(client.status("/").await?, 200);
    Ok(())
}

/// Everything that the console answers on a connection, until it closes it.
async fn until_closed(mut connection: TcpStream) -> Result<String> {
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, connection.read_to_end(&mut answer)).await;
    // A reset closes a connection too.
    drop(ended.context("the connection is still open")?);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_request_that_is_never_finished_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let slow = console.client().begin("GET /", "X-Slow: ").await?;
    until_closed(slow).await.map(drop)
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_off() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let begun = client.same_origin() + "Content-Length: 1000\r\n\r\nlabel=";
    let slow = client.begin("POST /tokens", &begun).await?;
    let answer = until_closed(slow).await?;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    Ok(())
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

#[tokio::test]
async fn one_address_does_not_take_all_connections() -> Result<()> {
    let console = Console::start().await?;
    let connect = async || -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, 9], 0).into())?;
        Ok(socket.connect(console.address).await?)
    };
    let mut idle = Vec::new();
    for _ in 0..256 {
        idle.push(connect().await?);
    }
    let answer = until_closed(connect().await?).await?;
    assert!(answer.is_empty(), "it was served");
    assert_eq!(console.client().status("/healthz").await?, 200);
    Ok(())
}
