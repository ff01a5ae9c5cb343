//! Opening streams while others misbehave: nobody who has proven nothing delays those who have.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_testkit::{ActiveAgent, FakeAgent, Site};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tonic::Code;

use super::{EPOCH, World};

/// Far below what a stalled opening took, far above what a slow machine needs.
const PROMPT: Duration = Duration::from_secs(8);

/// A JWT over many keys of the thief's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_jwt_over_many_keys_delays_no_other_agent_and_not_its_owner() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let other = ActiveAgent::new(site, agent.address, 2).await?;
    let mut thieves = JoinSet::new();
    for _ in 0..60 {
        let thief = ActiveAgent {
            agent: FakeAgent::on(agent.agent.host.clone())?,
            ..agent.clone()
        };
        thieves.spawn(async move {
            for _ in 0..5 {
                let refused = thief.refused_heartbeat().await?;
                let expected = ["KEY_MISMATCH", "DATABASE_UNAVAILABLE"];
                ensure!(expected.contains(&refused.reason.as_str()), "{refused:?}");
            }
            Ok(())
        });
    }
    let began = Instant::now();
    let mut call = other.heartbeat().await?;
    ensure!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    call.report_acked(1..=1).await?;
    for result in thieves.join_all().await {
        result?;
    }
    timeout(PROMPT, agent.heartbeat()).await??;
    site.expect("SELECT count(*) FROM agent_state WHERE epoch > 0", "2")
        .await
}

/// An administrator's transaction holds one agent's row.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_row_is_locked_delays_no_other() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let others = [
        ActiveAgent::new(site, agent.address, 2).await?,
        ActiveAgent::new(site, agent.address, 3).await?,
    ];
    let lock = lock_row(site, agent, 12).await?;
    let (blocked, prompt) = tokio::join!(agent.refused_heartbeat(), async {
        let began = Instant::now();
        for other in &others {
            other.heartbeat().await?.report_acked(1..=1).await?;
        }
        anyhow::Ok(began.elapsed())
    });
    ensure!(prompt? < PROMPT, "others waited");
    blocked?.assert(Code::Unavailable, "DATABASE_UNAVAILABLE");
    lock.await??;
    timeout(PROMPT, agent.heartbeat()).await??;
    site.expect("SELECT epoch FROM agent_state", "1\n1\n1")
        .await
}

/// The request of a client that has connected to another instance meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_outlived_its_client_displaces_no_live_stream() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let sibling = site.instance().start().await?;
    let lock = lock_row(site, agent, 4).await?;
    let abandoned = agent.clone();
    let waiting = tokio::spawn(async move { abandoned.heartbeat().await.map(drop) });
    tokio::time::sleep(Duration::from_secs(2)).await;
    waiting.abort();
    lock.await??;
    let mut live = agent.heartbeat_at(sibling.grpc).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    live.report_acked(1..=1).await?;
    site.expect(EPOCH, "online|1").await
}

/// A transaction that holds an agent's row for some seconds.
async fn lock_row(
    site: &Site,
    agent: &ActiveAgent,
    seconds: u32,
) -> Result<JoinHandle<Result<String>>> {
    let sql = format!(
        "BEGIN; SELECT FROM agent_state WHERE agent_id = '{}' FOR UPDATE; SELECT pg_sleep({seconds}); COMMIT",
        agent.id
    );
    let url = site.database_url();
    let lock = tokio::spawn(async move { svc_sandbox::query(&url, &sql).await });
    let sleeping = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event = 'PgSleep'";
    site.becomes(sleeping, "1").await?;
    Ok(lock)
}
