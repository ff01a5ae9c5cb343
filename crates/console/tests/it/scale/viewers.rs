//! 200 people with live pages, while every host reports.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_store::{Role, Store};
use svc_testkit::{Process, Site, Usage};
use tokio::{
    io::AsyncReadExt,
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    fleet::{BATCH, Reporter, append},
    pages::Measured,
};
use crate::support::{Client, Console};

/// Every host reports once in this time.
pub const PERIOD: Duration = Duration::from_secs(30);
/// How long viewers are watched, after they have had time to join.
const WATCHED: Duration = Duration::from_secs(60);

/// What 200 viewers cost the console, of this many different views.
pub struct Watched {
    pub views: usize,
    pub cores: f64,
    /// Messages that the least served viewer got.
    pub least: u64,
}

/// 20 pages of the list, 10 viewers each.
pub async fn pages_of_hosts(site: &Site) -> Result<Vec<String>> {
    let sql = "SELECT string_agg(id::text, ',' ORDER BY hostname)
                 FROM (SELECT id, hostname, (row_number() OVER (ORDER BY hostname, id) - 1) / 50 AS page
                         FROM hosts ORDER BY hostname, id LIMIT 1000) hosts GROUP BY page";
    let pages = site.psql(sql).await?;
    let pages = pages.lines().map(|ids| format!("view=hosts&ids={ids}"));
    Ok(pages.collect())
}

/// 200 hosts, one viewer each.
pub async fn single_hosts(site: &Site) -> Result<Vec<String>> {
    let sql = "SELECT id FROM hosts ORDER BY hostname, id LIMIT 200";
    let hosts = site.psql(sql).await?;
    Ok(hosts
        .lines()
        .map(|id| format!("view=host&ids={id}"))
        .collect())
}

/// 200 viewers share these views for a while; afterwards, while they still watch, pages are measured again.
pub async fn watched(
    console: &Console,
    process: &Process,
    views: &[String],
    pages: &mut [Measured],
) -> Result<Watched> {
    let mut streams = JoinSet::new();
    let mut received = Vec::new();
    for person in 0..10 {
        let name = format!("person-{person}");
        let client = console.signed_in(&name, Role::Viewer).await?;
        for tab in 0..20 {
            let view = views[(20 * person + tab) % views.len()].clone();
            let messages = Arc::<AtomicU64>::default();
            streams.spawn(watch(client.clone(), view, messages.clone()));
            received.push(messages);
        }
    }
    sleep(Duration::from_secs(15)).await;
    received
        .iter()
        .for_each(|messages| messages.store(0, Relaxed));
    let ((), cores) = Usage::cores(process.pid(), sleep(WATCHED)).await?;
    let least = received.iter().map(|messages| messages.load(Relaxed)).min();
    if !pages.is_empty() {
        let client = console.signed_in("ann", Role::Admin).await?;
        for page in pages {
            page.again(&client).await?;
        }
    }
    let ended = streams.try_join_next();
    ensure!(ended.is_none(), "a stream ended: {ended:?}");
    Ok(Watched {
        views: views.len(),
        cores,
        least: least.unwrap_or_default(),
    })
}

/// Keeps reading a live stream, and counts its messages.
async fn watch(client: Client, view: String, messages: Arc<AtomicU64>) -> Result<()> {
    let mut stream = client.begin(&format!("GET /live?{view}"), "\r\n").await?;
    let mut chunk = [0; 64 * 1024];
    loop {
        let length = stream.read(&mut chunk).await?;
        ensure!(length > 0, "closed");
        // The id of the live part begins each message, and pages have it nowhere else.
        let part = b"hx-target=\"#live\"";
        let begun = chunk[..length]
            .windows(part.len())
            .filter(|text| text == part);
        messages.fetch_add(begun.count() as u64, Relaxed);
    }
}

/// Stores a sample of every host every 30 seconds, as the consumer does.
pub struct Reporting {
    task: JoinHandle<Result<()>>,
    stored: Arc<AtomicU64>,
    began: Instant,
}

impl Reporting {
    pub fn start(store: Store, reporters: Vec<Reporter>) -> Self {
        let stored = Arc::<AtomicU64>::default();
        Self {
            task: tokio::spawn(report(store, reporters, stored.clone())),
            stored,
            began: Instant::now(),
        }
    }

    /// Samples a second so far.
    pub fn rate(&self) -> Result<f64> {
        ensure!(!self.task.is_finished(), "the fleet stopped reporting");
        Ok(self.stored.load(Relaxed) as f64 / self.began.elapsed().as_secs_f64())
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn report(store: Store, mut reporters: Vec<Reporter>, stored: Arc<AtomicU64>) -> Result<()> {
    let batches = reporters.len().div_ceil(BATCH);
    let mut ticks = interval(PERIOD / u32::try_from(batches)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        for batch in reporters.chunks_mut(BATCH) {
            ticks.tick().await;
            append(&store, batch).await?;
            stored.fetch_add(batch.len() as u64, Relaxed);
        }
    }
}
