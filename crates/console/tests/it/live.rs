//! Live streams.

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::{FakeAgent, PATIENCE, eventually, machine};
use tokio::{io::AsyncReadExt, time::timeout};

use crate::support::{Client, Connection, Console, seed_hosts};

struct Stream(Box<dyn Connection>, String);

impl Stream {
    /// An open stream.
    async fn open(client: &Client, view: &str) -> Result<Self> {
        let stream = client.begin(&format!("GET /live?{view}"), "\r\n").await?;
        let mut stream = Self(stream, String::new());
        stream.until("\r\n\r\n").await?;
        let head = &stream.1;
        ensure!(
            head.starts_with("HTTP/1.1 200 OK") && head.contains("text/event-stream"),
            "{head}"
        );
        Ok(stream)
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
        let read = timeout(PATIENCE, reading).await;
        read.with_context(|| format!("{text} did not come"))?
    }
}

/// A deferred htmx starts without waiting for the scripts after it, and opens no stream if its extension comes late.
#[tokio::test]
async fn htmx_starts_after_its_extension() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Viewer).await?;
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
    let agent = FakeAgent::on(machine(7))?;
    let _waiting = console.waiting(&instance, agent).await?;
    queue.until("<span class=\"badge\">1</span>").await?;
    queue.until(">web-7</a>").await
}

#[tokio::test]
async fn rows_of_a_list_are_updated_in_place() -> Result<()> {
    let (console, client) = Console::signed_in_as("ann", Role::Viewer).await?;
    seed_hosts(&console.site, 2).await?;
    let id = "SELECT id FROM hosts WHERE hostname = 'web-001'";
    let id = console.site.psql(id).await?;
    let mut rows = Stream::open(&client, &format!("view=hosts&ids={id}")).await?;
    let busy = "UPDATE host_vitals SET cpu_percent = 87";
    console.site.psql(busy).await?;
    rows.until("87 %").await?;
    let others = rows.1.contains("web-000");
    assert!(!others, "only the rows that were asked for");
    Ok(())
}

#[tokio::test]
async fn a_stop_ends_open_streams_at_once() -> Result<()> {
    let mut console = Console::start().await?;
    let client = console.signed_in("ann", Role::Viewer).await?;
    let mut stream = Stream::open(&client, "view=fleet").await?;
    console.stop().await?;
    let ended = timeout(PATIENCE, stream.0.read_to_end(&mut Vec::new())).await;
    ended.context("it is still open")??;
    Ok(())
}

#[tokio::test]
async fn views_that_do_not_exist_and_too_many_rows_are_refused() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Viewer).await?;
    let id = "00000000-0000-4000-8000-000000000000";
    let many = format!("view=hosts&ids={}", vec![id; 101].join(","));
    for view in ["view=x", "view=host&ids=1", &many] {
        assert_eq!(client.status(&format!("/live?{view}")).await?, 404);
    }
    Ok(())
}

#[tokio::test]
async fn one_person_does_not_take_all_streams() -> Result<()> {
    let console = Console::start().await?;
    let greedy = console.signed_in("greedy", Role::Viewer).await?;
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(Stream::open(&greedy, "view=fleet").await?);
    }
    assert_eq!(greedy.status("/live?view=fleet").await?, 429);
    let other = console.signed_in("ann", Role::Viewer).await?;
    Stream::open(&other, "view=fleet").await?;
    drop(streams);
    eventually("closed streams make room", async || {
        Stream::open(&greedy, "view=fleet").await.is_ok()
    })
    .await
}
