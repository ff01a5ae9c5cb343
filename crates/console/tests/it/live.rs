//! Live streams.

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{FakeAgent, MANUAL, PATIENCE, eventually, machine, token};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{Client, Console, seed_hosts};

struct Stream(TcpStream, String);

impl Stream {
    async fn open(client: &Client, view: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(client.address).await?;
        let cookie = client.cookie.clone().context("not signed in")?;
        let request =
            format!("GET /live?{view} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self(stream, String::new()))
    }

    /// Reads until `text` has come.
    async fn until(&mut self, text: &str) -> Result<()> {
        let reading = async {
            let mut chunk = [0; 8192];
            while !self.1.contains(text) {
                let length = self.0.read(&mut chunk).await?;
                ensure!(length > 0, "the stream ended: {}", self.1);
                self.1.push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
            Ok(())
        };
        timeout(PATIENCE, reading)
            .await
            .with_context(|| format!("{text} did not come"))?
    }

    /// Reads to the end.
    async fn ends(mut self) -> Result<()> {
        let mut rest = Vec::new();
        timeout(PATIENCE, self.0.read_to_end(&mut rest))
            .await
            .context("it is still open")??;
        Ok(())
    }
}

/// A deferred htmx starts without waiting for the scripts after it, and opens no stream if its extension comes late.
#[tokio::test]
async fn htmx_starts_after_its_extension() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let page = client.get("/").await?.body;
    let tag = |name: &str| {
        let mut tags = page.split("<script ").filter_map(|tag| tag.split_once('>'));
        tags.position(|(tag, _)| tag.contains(name) && !tag.contains("defer"))
    };
    let (htmx, extension) = (tag("/htmx"), tag("/hx-sse"));
    ensure!(htmx.is_some() && htmx < extension, "{page}");
    Ok(())
}

#[tokio::test]
async fn a_new_registration_appears_on_open_pages_by_itself() -> Result<()> {
    let (console, instance) = Console::with_service().await?;
    let client = console.signed_in("olga", Role::Operator).await?;
    let mut queue = Stream::open(&client, "view=approvals").await?;
    queue.until("text/event-stream").await?;
    let secret = token(&console.site, MANUAL).await?;
    let agent = FakeAgent::on(machine(7))?;
    agent.open(instance.grpc, &secret).await??.answer().await?;
    queue.until("<span class=\"badge\">1</span>").await?;
    queue.until(">web-7</a>").await
}

#[tokio::test]
async fn rows_of_a_list_are_updated_in_place() -> Result<()> {
    let console = Console::start().await?;
    seed_hosts(&console.site, 2).await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let id = console
        .site
        .psql("SELECT id FROM hosts WHERE hostname = 'web-001'")
        .await?;
    let mut rows = Stream::open(&client, &format!("view=hosts&ids={id}")).await?;
    rows.until("text/event-stream").await?;
    console
        .site
        .psql("UPDATE host_vitals SET cpu_percent = 87")
        .await?;
    rows.until("87 %").await?;
    assert!(
        !rows.1.contains("web-000"),
        "only the rows that were asked for"
    );
    Ok(())
}

#[tokio::test]
async fn a_stop_ends_open_streams_at_once() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let mut stream = Stream::open(&client, "view=fleet").await?;
    stream.until("text/event-stream").await?;
    console.stop().await?;
    stream.ends().await
}

#[tokio::test]
async fn views_that_do_not_exist_and_too_many_rows_are_refused() -> Result<()> {
    let console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let id = "00000000-0000-4000-8000-000000000000";
    let many = vec![id; 101].join(",");
    for view in [
        "view=x",
        "view=host&ids=1",
        &format!("view=hosts&ids={many}"),
    ] {
        assert_eq!(client.get(&format!("/live?{view}")).await?.status, 404);
    }
    Ok(())
}

#[tokio::test]
async fn one_person_does_not_take_all_streams() -> Result<()> {
    let console = Console::start().await?;
    let greedy = console.signed_in("greedy", Role::Viewer).await?;
    let mut streams = Vec::new();
    for _ in 0..40 {
        let mut stream = Stream::open(&greedy, "view=fleet").await?;
        stream.until("text/event-stream").await?;
        streams.push(stream);
    }
    assert_eq!(greedy.get("/live?view=fleet").await?.status, 429);
    let other = console.signed_in("ann", Role::Viewer).await?;
    let mut stream = Stream::open(&other, "view=fleet").await?;
    stream.until("text/event-stream").await?;
    drop(streams);
    eventually("closed streams make room", async || {
        let mut again = match Stream::open(&greedy, "view=fleet").await {
            Ok(stream) => stream,
            Err(_) => return false,
        };
        again.until("HTTP/1.1 ").await.is_ok() && again.1.contains("200 OK")
    })
    .await
}
