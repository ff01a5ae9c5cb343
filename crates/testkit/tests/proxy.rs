//! Every fault of the proxy, over a real TCP echo.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use svc_testkit::Proxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const SOON: Duration = Duration::from_secs(5);
const A_WHILE: Duration = Duration::from_millis(200);

/// An echo server, which first sends `name`.
async fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await?;
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    address
}

async fn echo_proxy() -> Proxy {
    Proxy::start(vec![echo("").await]).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn send(stream: &mut TcpStream, word: &[u8]) {
    stream.write_all(word).await.unwrap();
}

async fn receive(stream: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut word = vec![0; length];
    timeout(SOON, stream.read_exact(&mut word))
        .await
        .expect("nothing arrived")?;
    Ok(word)
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(A_WHILE, stream.read_u8()).await.is_err()
}

async fn assert_echoes(stream: &mut TcpStream) {
    send(stream, b"ping").await;
    assert_eq!(receive(stream, 4).await.unwrap(), b"ping");
}

async fn assert_reset(stream: &mut TcpStream) {
    let error = receive(stream, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn many_bytes_pass_unchanged_and_so_does_the_end() {
    let proxy = echo_proxy().await;
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    let (mut from, mut to) = connect(&proxy).await.into_split();
    let expected = sent.clone();
    tokio::spawn(async move { to.write_all(&sent).await });
    let mut received = Vec::new();
    timeout(SOON, from.read_to_end(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert!(received == expected);
}

#[tokio::test]
async fn targets_take_turns_and_dead_ones_are_skipped() {
    let (a, b) = (echo("a").await, echo("b").await);
    let dead = SocketAddr::from(([127, 0, 0, 1], svc_sandbox::free_port().unwrap()));
    let proxy = Proxy::start(vec![a, b]).await.unwrap();
    let first = receive(&mut connect(&proxy).await, 1).await.unwrap();
    let second = receive(&mut connect(&proxy).await, 1).await.unwrap();
    assert_eq!([first, second].concat(), b"ab");

    proxy.set_targets(vec![dead, b]);
    for _ in 0..3 {
        assert_eq!(receive(&mut connect(&proxy).await, 1).await.unwrap(), b"b");
    }
    proxy.set_targets(vec![dead]);
    assert!(receive(&mut connect(&proxy).await, 1).await.is_err());
}

#[tokio::test]
async fn a_cut_resets_open_connections_and_not_later_ones() {
    let proxy = echo_proxy().await;
    let mut stream = connect(&proxy).await;
    assert_echoes(&mut stream).await;
    proxy.cut_all();
    assert_reset(&mut stream).await;
    assert_echoes(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_black_hole_holds_bytes_of_old_and_new_connections_until_it_is_healed() {
    let proxy = echo_proxy().await;
    let mut old = connect(&proxy).await;
    assert_echoes(&mut old).await;
    proxy.black_hole(true);
    let mut new = connect(&proxy).await;
    for stream in [&mut old, &mut new] {
        send(stream, b"lost").await;
        assert!(is_silent(stream).await);
    }
    proxy.heal().unwrap();
    for stream in [&mut old, &mut new] {
        assert_eq!(receive(stream, 4).await.unwrap(), b"lost");
    }
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes_to_the_client() {
    let proxy = echo_proxy().await;
    let mut old = connect(&proxy).await;
    assert_echoes(&mut old).await;
    proxy.cut_after(Some(3));
    let mut new = connect(&proxy).await;
    send(&mut new, b"12345").await;
    assert_eq!(receive(&mut new, 3).await.unwrap(), b"123");
    assert_reset(&mut new).await;
    assert_echoes(&mut old).await;
    proxy.cut_after(None);
    assert_echoes(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn new_connections_are_refused_at_once_and_open_ones_stay() {
    let proxy = echo_proxy().await;
    let mut open = connect(&proxy).await;
    assert_echoes(&mut open).await;
    proxy.refuse(true).unwrap();
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_echoes(&mut open).await;
    proxy.refuse(false).unwrap();
    assert_echoes(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_dropped_proxy_ends_its_connections() {
    let proxy = echo_proxy().await;
    let mut stream = connect(&proxy).await;
    assert_echoes(&mut stream).await;
    let address = proxy.address();
    drop(proxy);
    assert!(receive(&mut stream, 1).await.is_err());
    assert!(TcpStream::connect(address).await.is_err());
}
