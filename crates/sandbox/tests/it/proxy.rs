//! Every knob of the proxy, over a real TCP echo.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use svc_sandbox::{Direction, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(5);
const A_WHILE: Duration = Duration::from_millis(200);

/// A server that answers what it hears, and greets with `name` if it has one.
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

/// A server that greets, and tells what arrived on each connection once that has ended.
async fn recorder() -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (heard, records) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = Vec::new();
            let _ = stream.write_all(b"!").await;
            let _ = stream.read_to_end(&mut bytes).await;
            let _ = heard.send(bytes).await;
        }
    });
    (address, records)
}

async fn echo_proxy() -> Proxy {
    Proxy::start(vec![echo("").await]).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

async fn say(stream: &mut TcpStream, word: &[u8]) {
    stream.write_all(word).await.unwrap();
}

async fn hear(stream: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut word = vec![0; length];
    timeout(SOON, stream.read_exact(&mut word))
        .await
        .expect("nothing was heard")?;
    Ok(word)
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(A_WHILE, stream.read_u8()).await.is_err()
}

async fn assert_echoes(stream: &mut TcpStream) {
    say(stream, b"ping").await;
    assert_eq!(hear(stream, 4).await.unwrap(), b"ping");
}

#[tokio::test]
async fn much_goes_through_unchanged_and_an_end_is_passed_on() {
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
async fn targets_take_turns_and_the_dead_are_passed_over() {
    let (a, b) = (echo("a").await, echo("b").await);
    let dead = SocketAddr::from(([127, 0, 0, 1], svc_sandbox::free_port().unwrap()));
    let proxy = Proxy::start(vec![a, b]).await.unwrap();
    let first = hear(&mut connect(&proxy).await, 1).await.unwrap();
    let second = hear(&mut connect(&proxy).await, 1).await.unwrap();
    assert_eq!([first, second].concat(), b"ab");

    proxy.set_targets(vec![dead, b]);
    for _ in 0..3 {
        assert_eq!(hear(&mut connect(&proxy).await, 1).await.unwrap(), b"b");
    }
    proxy.set_targets(vec![dead]);
    assert!(hear(&mut connect(&proxy).await, 1).await.is_err());
}

#[tokio::test]
async fn a_delay_holds_both_ways() {
    let proxy = echo_proxy().await;
    let mut stream = connect(&proxy).await;
    assert_echoes(&mut stream).await;
    proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    assert_echoes(&mut stream).await;
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_cut_resets_what_is_open_and_not_what_comes_after() {
    let proxy = echo_proxy().await;
    let mut stream = connect(&proxy).await;
    assert_echoes(&mut stream).await;
    proxy.cut_all();
    assert_eq!(
        hear(&mut stream, 1).await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_echoes(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn after_a_half_close_the_client_hears_the_end_and_is_still_heard() {
    let (address, mut records) = recorder().await;
    let proxy = Proxy::start(vec![address]).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(hear(&mut stream, 1).await.unwrap(), b"!");
    say(&mut stream, b"before ").await;
    proxy.half_close();
    assert_eq!(
        hear(&mut stream, 1).await.unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    say(&mut stream, b"after").await;
    drop(stream);
    assert_eq!(
        timeout(SOON, records.recv()).await.unwrap().unwrap(),
        b"before after"
    );
}

#[tokio::test]
async fn a_black_hole_is_silent_for_old_and_new_and_lets_go_when_healed() {
    let proxy = echo_proxy().await;
    let mut old = connect(&proxy).await;
    assert_echoes(&mut old).await;
    proxy.black_hole(true);
    let mut new = connect(&proxy).await;
    for stream in [&mut old, &mut new] {
        say(stream, b"lost").await;
        assert!(is_silent(stream).await);
    }
    proxy.heal().unwrap();
    for stream in [&mut old, &mut new] {
        assert_eq!(hear(stream, 4).await.unwrap(), b"lost");
    }
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes_to_the_client() {
    let proxy = echo_proxy().await;
    let mut old = connect(&proxy).await;
    assert_echoes(&mut old).await;
    proxy.cut_after(Some(3));
    let mut new = connect(&proxy).await;
    say(&mut new, b"12345").await;
    assert_eq!(hear(&mut new, 3).await.unwrap(), b"123");
    assert_eq!(
        hear(&mut new, 1).await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_echoes(&mut old).await;
    proxy.cut_after(None);
    assert_echoes(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes_to_the_server() {
    let (address, mut records) = recorder().await;
    let proxy = Proxy::start(vec![address]).await.unwrap();
    proxy.cut_after_in(Direction::ToServer, Some(3));
    let mut stream = connect(&proxy).await;
    say(&mut stream, b"12345").await;
    assert_eq!(
        timeout(SOON, records.recv()).await.unwrap().unwrap(),
        b"123"
    );
    assert_eq!(
        hear(&mut stream, 1).await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn what_is_refused_is_refused_at_once_and_open_connections_stay() {
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
    assert!(hear(&mut stream, 1).await.is_err());
    assert!(TcpStream::connect(address).await.is_err());
}
