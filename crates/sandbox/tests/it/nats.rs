//! NATS: its data survive a kill, and a frozen server does not answer.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use svc_sandbox::{Nats, NatsOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(5);

async fn connect(nats: &Nats) -> std::io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", nats.port())).await
}

/// Calls the JetStream API over a plain connection and returns the body of the reply.
async fn ask(nats: &Nats, subject: &str, body: &str) -> Result<String> {
    let stream = connect(nats).await?;
    let mut stream = BufReader::new(stream);
    let request = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\nPUB {subject} reply {}\r\n{body}\r\n",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut lines = stream.lines();
    while let Some(line) = timeout(SOON, lines.next_line()).await?? {
        if line.starts_with("MSG reply") {
            return lines.next_line().await?.context("no body");
        }
    }
    bail!("the server hung up")
}

#[tokio::test]
async fn a_stream_survives_a_kill_at_the_same_address() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    let stream = r#"{"name":"s","subjects":["in"],"storage":"file"}"#;
    let made = ask(&nats, "$JS.API.STREAM.CREATE.s", stream).await?;
    assert!(!made.contains("error"), "{made}");
    ask(&nats, "in", "a message").await?;
    let url = nats.url();
    nats.kill().await?;
    assert!(connect(&nats).await.is_err());

    nats.start_again().await?;
    assert_eq!(nats.url(), url);
    let info = ask(&nats, "$JS.API.STREAM.INFO.s", "").await?;
    assert!(info.contains(r#""messages":1"#), "{info}");

    let data_dir = nats.data_dir().to_owned();
    drop(nats);
    assert!(!data_dir.parent().unwrap().exists());
    Ok(())
}

#[tokio::test]
async fn a_frozen_server_greets_no_client_until_it_thaws() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    nats.freeze()?;
    let stream = connect(&nats).await?;
    let mut greeting = BufReader::new(stream).lines();
    let early = timeout(Duration::from_millis(300), greeting.next_line()).await;
    assert!(early.is_err());
    nats.thaw()?;
    let line = timeout(SOON, greeting.next_line())
        .await??
        .context("the end")?;
    assert!(line.starts_with("INFO "));
    Ok(())
}
