//! NATS: its data survive a kill, and a frozen server does not answer.

use std::time::Duration;

use svc_sandbox::{Nats, NatsOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(5);

/// Calls the JetStream API over a plain connection and returns the body of the reply.
async fn ask(nats: &Nats, subject: &str, body: &str) -> String {
    let stream = TcpStream::connect(("127.0.0.1", nats.port()))
        .await
        .unwrap();
    let mut stream = BufReader::new(stream);
    let request = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\nPUB {subject} reply {}\r\n{body}\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = stream.lines();
    while let Some(line) = timeout(SOON, lines.next_line()).await.unwrap().unwrap() {
        if line.starts_with("MSG reply") {
            return lines.next_line().await.unwrap().unwrap();
        }
    }
    panic!("the server hung up");
}

#[tokio::test]
async fn a_stream_survives_a_kill_at_the_same_address() {
    let mut nats = Nats::start(NatsOptions::default()).await.unwrap();
    let made = ask(
        &nats,
        "$JS.API.STREAM.CREATE.s",
        r#"{"name":"s","subjects":["in"],"storage":"file"}"#,
    )
    .await;
    assert!(!made.contains("error"), "{made}");
    ask(&nats, "in", "a message").await;
    let url = nats.url();
    nats.kill().await.unwrap();
    assert!(
        TcpStream::connect(("127.0.0.1", nats.port()))
            .await
            .is_err()
    );

    nats.start_again().await.unwrap();
    assert_eq!(nats.url(), url);
    let info = ask(&nats, "$JS.API.STREAM.INFO.s", "").await;
    assert!(info.contains(r#""messages":1"#), "{info}");

    let data_dir = nats.data_dir().to_owned();
    drop(nats);
    assert!(!data_dir.parent().unwrap().exists());
}

#[tokio::test]
async fn a_frozen_server_greets_no_client_until_it_thaws() {
    let nats = Nats::start(NatsOptions::default()).await.unwrap();
    nats.freeze().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", nats.port()))
        .await
        .unwrap();
    let mut greeting = BufReader::new(stream).lines();
    assert!(
        timeout(Duration::from_millis(300), greeting.next_line())
            .await
            .is_err()
    );
    nats.thaw().unwrap();
    let line = timeout(SOON, greeting.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(line.starts_with("INFO "));
}
