//! Moves between two cells, each with a database and an instance of its own, of agents that measure and store.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use svc_agent::recorder::Recorder;
use svc_proto::contract::BackoffBounds;
use svc_testkit::{
    AUTO, Instance, Site,
    cells::{carry, name_cell, tell},
    eventually, token,
};
use tokio_util::task::AbortOnDropHandle;

use crate::installation::{Installed, PRESENCE, Running, books_balance};

/// Watermark, samples, gaps and rejected ones, and numbers of other cells.
const BOOKS: &str =
    "SELECT acked_seq, stored_count, gap_count + rejected_count, moved_count FROM agent_state";
const LOST: &str = "SELECT coalesce(sum(gap_count + rejected_count), 0) FROM agent_state";

struct Cell {
    site: Site,
    instance: Instance,
}

impl Cell {
    async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let instance = site
            .instance()
            .set("INGEST_HEARTBEAT_INTERVAL", "1s")
            .timing(|timing| timing.offers = Duration::from_millis(200))
            .start()
            .await?;
        Ok(Self { site, instance })
    }

    /// Two cells that know each other.
    async fn pair() -> Result<(Self, Self)> {
        let (a, b) = (Self::new().await?, Self::new().await?);
        name_cell(&a.site, "b", &b.site, b.instance.grpc).await?;
        name_cell(&b.site, "a", &a.site, a.instance.grpc).await?;
        Ok((a, b))
    }

    async fn installed(&self, number: u32, token: &str) -> Result<Installed> {
        let addresses = [self.instance.grpc];
        let mut installed = Installed::new(&self.site, number, &addresses, token)?;
        let timing = &mut installed.surroundings.timing;
        timing.cell_spread = Duration::from_millis(100);
        timing.cell_retry = BackoffBounds {
            first: Duration::from_millis(200),
            most: Duration::from_secs(1),
        };
        Ok(installed)
    }

    /// An agent that lives here and has reported.
    async fn agent(&self) -> Result<(Installed, Running)> {
        let installed = self.installed(1, &token(&self.site, AUTO).await?).await?;
        let agent = installed.start()?;
        self.stores_more().await?;
        Ok((installed, agent))
    }

    async fn stored(&self) -> Result<u64> {
        let stored = "SELECT coalesce(sum(stored_count), 0) FROM agent_state";
        Ok(self.site.psql(stored).await?.parse()?)
    }

    async fn stores_more(&self) -> Result<()> {
        let before = self.stored().await?;
        eventually("the cell stores more samples", async || {
            self.stored().await.is_ok_and(|stored| stored > before + 1)
        })
        .await
    }

    /// This cell gives its agents away.
    async fn moves_all_to(&self, other: &Self, name: &str) -> Result<()> {
        ensure!(carry(&self.site, &other.site).await? == 1);
        ensure!(tell(&self.site, name, 100).await? == 1);
        self.site.becomes(PRESENCE, "moved").await?;
        other.site.becomes(PRESENCE, "online").await?;
        other.stores_more().await
    }
}

/// Takes samples as fast as an agent may store them.
fn load(recorder: &Arc<Recorder>) -> AbortOnDropHandle<()> {
    let recorder = recorder.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            recorder.take().await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }))
}

/// Every number is stored in one of the two cells, once, and none is lost.
async fn books_of_both_balance(cells: [&Cell; 2], recorder: &Recorder) -> Result<()> {
    let mut numbers = 0;
    for cell in cells {
        books_balance(&cell.site).await?;
        cell.site.expect(LOST, "0").await?;
        let rows = "SELECT count(*), count(DISTINCT seq) FROM host_metrics";
        let rows = cell.site.psql(rows).await?;
        let (all, distinct) = rows.split_once('|').context(rows.clone())?;
        ensure!(all == distinct, "{rows}");
        numbers += all.parse::<u64>()?;
    }
    let (_, acked) = recorder.numbers();
    ensure!(numbers == acked, "{numbers} stored of {acked} acknowledged");
    Ok(())
}

/// Waits until everything that was taken is acknowledged.
async fn all_acknowledged(recorder: &Recorder) -> Result<()> {
    eventually("all samples are acknowledged", async || {
        let (next, acked) = recorder.numbers();
        acked + 1 == next
    })
    .await
}

#[tokio::test]
async fn an_agent_moves_under_load_and_back_and_each_sample_is_stored_once() -> Result<()> {
    let (a, b) = Cell::pair().await?;
    let (installed, agent) = a.agent().await?;
    let load = load(&agent.recorder);
    a.stores_more().await?;
    a.moves_all_to(&b, "b").await?;
    installed
        .status_becomes("its cell is b", |status| {
            status.rare.cell.as_deref() == Some("b")
        })
        .await?;
    let gone = "SELECT cause, (SELECT count(*) FROM agent_moves WHERE moved_at IS NOT NULL) FROM agent_state";
    a.site.expect(gone, "moved|1").await?;
    b.moves_all_to(&a, "a").await?;
    a.site
        .expect("SELECT count(*) FROM agent_moves", "0")
        .await?;
    drop(load);
    all_acknowledged(&agent.recorder).await?;
    let recorder = agent.recorder.clone();
    agent.stop().await?;
    books_of_both_balance([&a, &b], &recorder).await?;
    let offline = "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline' AND reason <> 'goodbye'";
    a.site.expect(offline, "0").await
}

#[tokio::test]
async fn a_restarted_agent_lives_where_it_moved_and_one_without_its_memory_is_told_again()
-> Result<()> {
    let (a, b) = Cell::pair().await?;
    let (installed, agent) = a.agent().await?;
    a.moves_all_to(&b, "b").await?;
    agent.stop().await?;
    b.site.becomes(PRESENCE, "offline").await?;

    let agent = installed.start()?;
    b.site.becomes(PRESENCE, "online").await?;
    b.stores_more().await?;
    agent.stop().await?;
    b.site.becomes(PRESENCE, "offline").await?;

    std::fs::remove_file(installed.path().join("state.json"))?;
    let agent = installed.start()?;
    b.site.becomes(PRESENCE, "online").await?;
    b.stores_more().await?;
    a.site
        .expect("SELECT presence, epoch FROM agent_state", "moved|1")
        .await?;
    all_acknowledged(&agent.recorder).await?;
    let moved =
        "SELECT moved_count > 0 AND moved_count + stored_count = acked_seq FROM agent_state";
    b.site.expect(moved, "t").await?;
    let total = a.stored().await? + b.stored().await?;
    let (_, acked) = agent.recorder.numbers();
    ensure!(total >= acked, "{total} stored of {acked}");
    a.site.expect(LOST, "0").await?;
    b.site.expect(LOST, "0").await
}

#[tokio::test]
async fn an_agent_that_the_other_cell_does_not_admit_stays_and_says_why() -> Result<()> {
    let (a, b) = Cell::pair().await?;
    let (installed, agent) = a.agent().await?;
    ensure!(tell(&a.site, "b", 100).await? == 1);
    a.site
        .becomes("SELECT problem LIKE 'cell b: %' FROM agent_moves", "t")
        .await?;
    a.stores_more().await?;
    a.site
        .expect("SELECT presence, epoch FROM agent_state", "online|1")
        .await?;
    b.site.expect("SELECT count(*) FROM agents", "0").await?;
    let status = installed.status()?;
    ensure!(
        status.rare.cell.is_none() && status.rare.cell_problem.is_some(),
        "{status:?}"
    );

    carry(&a.site, &b.site).await?;
    a.site.becomes(PRESENCE, "moved").await?;
    b.stores_more().await?;
    all_acknowledged(&agent.recorder).await?;
    books_of_both_balance([&a, &b], &agent.recorder).await
}

#[tokio::test]
async fn a_pinned_agent_never_moves() -> Result<()> {
    let (a, b) = Cell::pair().await?;
    let mut installed = a.installed(1, &token(&a.site, AUTO).await?).await?;
    installed.settings.push(("pinned_cell", "true".into()));
    let agent = installed.start()?;
    a.stores_more().await?;
    carry(&a.site, &b.site).await?;
    tell(&a.site, "b", 100).await?;
    let why = "SELECT problem LIKE '%pinned_cell%' FROM agent_moves";
    a.site.becomes(why, "t").await?;
    a.stores_more().await?;
    a.site.expect(PRESENCE, "online").await?;
    b.site.expect(PRESENCE, "moved").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_cell_is_drained_in_steps_that_only_add_agents() -> Result<()> {
    const AGENTS: u32 = 5;
    let (a, b) = Cell::pair().await?;
    let secret = token(&a.site, AUTO).await?;
    let mut agents = Vec::new();
    for number in 1..=AGENTS {
        let installed = a.installed(number, &secret).await?;
        agents.push((installed.start()?, installed));
    }
    let online = "SELECT count(*) FROM agent_state WHERE presence = 'online'";
    a.site.becomes(online, &AGENTS.to_string()).await?;
    ensure!(carry(&a.site, &b.site).await? == 5);
    let moved = "SELECT count(*) FROM agent_state WHERE presence = 'moved'";
    let mut told = 0;
    for share in [40, 70, 100] {
        told += tell(&a.site, "b", share).await?;
        let below =
            format!("SELECT count(*) FROM agents WHERE rollout_place(id, 0) < {share} * 10000");
        a.site.expect(&below, &told.to_string()).await?;
        a.site.becomes(moved, &told.to_string()).await?;
        b.site.becomes(online, &told.to_string()).await?;
    }
    ensure!(told == AGENTS.cast_signed(), "{told}");
    for (agent, _) in &agents {
        all_acknowledged(&agent.recorder).await?;
    }
    for cell in [&a, &b] {
        books_balance(&cell.site).await?;
        cell.site.expect(LOST, "0").await?;
    }
    let active =
        "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'offline'";
    a.site.expect(active, "0").await
}

#[tokio::test]
async fn an_agent_whose_cell_is_lost_asks_where_it_was_configured() -> Result<()> {
    let (a, b) = Cell::pair().await?;
    let mut installed = a.installed(1, &token(&a.site, AUTO).await?).await?;
    installed.surroundings.timing.cell_lost = Duration::from_secs(1);
    let agent = installed.start()?;
    a.stores_more().await?;
    a.moves_all_to(&b, "b").await?;
    let Cell { site, instance } = b;
    instance.stop().await?;
    a.site.becomes(PRESENCE, "online").await?;
    a.stores_more().await?;
    a.site.expect(LOST, "0").await?;
    books_balance(&a.site).await?;
    books_balance(&site).await?;
    let books = a.site.psql(BOOKS).await?;
    ensure!(!books.ends_with("|0"), "b's numbers are missing: {books}");
    let back = "SELECT moved_at IS NULL FROM agent_moves";
    a.site.expect(back, "t").await?;
    agent.stop().await
}
