//! Opening streams while others misbehave: nobody who has proven nothing delays those who have.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_testkit::{
    ActiveAgent, FakeAgent, Held, Instance, Site, eventually, faults::behind_proxy, metric,
    transaction_count,
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tonic::Code;

use super::{EPOCH, World};

/// Far below what a stalled opening took, far above what a slow machine needs.
const PROMPT: Duration = Duration::from_secs(8);

/// Agents of a storm.
const STORM: u32 = 30;

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
                refused.assert(Code::Unauthenticated, "KEY_MISMATCH");
            }
            anyhow::Ok(())
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

/// On an instance that has not met the agents: one that was revoked, one that was deleted, and one whose JWT was stolen.
#[tokio::test]
async fn openings_are_charged_to_the_agent_whatever_its_status_and_not_for_thieves() -> Result<()> {
    let site = Site::new().await?;
    let [instance, sibling] = site.instance().start_pair().await?;
    let mut agents = Vec::new();
    for number in 1..=3 {
        let mut agent = ActiveAgent::new(&site, sibling.grpc, number).await?;
        agent.address = instance.grpc;
        agents.push(agent);
    }
    let [revoked, deleted, owner] = &agents[..] else {
        unreachable!("three");
    };
    let decide = |sql: &str, agent: &ActiveAgent| sql.replace("{}", &agent.id);
    site.psql(&decide("SELECT revoke_agent('{}', 'ann')", revoked))
        .await?;
    site.psql(&decide("DELETE FROM agents WHERE id = '{}'", deleted))
        .await?;
    for (agent, code) in [(revoked, Code::PermissionDenied), (deleted, Code::NotFound)] {
        let mut refused = agent.refused_heartbeat().await?;
        assert_eq!(refused.code, code, "{refused:?}");
        for _ in 0..60 {
            if refused.reason == "RATE_LIMITED" {
                break;
            }
            refused = agent.refused_heartbeat().await?;
        }
        refused.assert_with_delay(Code::ResourceExhausted, "RATE_LIMITED");
    }
    let thief = ActiveAgent {
        agent: FakeAgent::on(owner.agent.host.clone())?,
        ..owner.clone()
    };
    for _ in 0..15 {
        let refused = thief.refused_heartbeat().await?;
        refused.assert(Code::Unauthenticated, "KEY_MISMATCH");
    }
    owner.heartbeat().await?.report_acked(1..=1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_agents_that_an_instance_has_not_met_are_looked_up_in_few_statements()
-> Result<()> {
    let site = Site::new().await?;
    let [instance, sibling] = site.instance().start_pair().await?;
    let lookups = async |instance: &Instance| transaction_count(instance.http, "agents_keys").await;
    let mut agents = Vec::new();
    for number in 0..STORM {
        agents.push(ActiveAgent::new(&site, instance.grpc, number).await?);
    }
    let connect = async |address| {
        let mut storm = JoinSet::new();
        for agent in agents.clone() {
            storm.spawn(async move { agent.heartbeat_at(address).await });
        }
        storm
            .join_all()
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()
    };
    connect(instance.grpc).await?;
    ensure!(lookups(&instance).await? == 0, "they registered here");
    let began = Instant::now();
    connect(sibling.grpc).await?;
    let (asked, most) = (
        lookups(&sibling).await?,
        began.elapsed().as_millis() / 100 + 2,
    );
    ensure!(asked > 0 && u128::from(asked) <= most, "{asked} lookups");
    connect(sibling.grpc).await?;
    ensure!(lookups(&sibling).await? == asked, "their keys are known");
    Ok(())
}

/// An administrator's transaction holds one agent's row.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_row_is_locked_delays_no_other() -> Result<()> {
    let World { site, agent, .. } = &World::new().await?;
    let others = [
        ActiveAgent::new(site, agent.address, 2).await?,
        ActiveAgent::new(site, agent.address, 3).await?,
    ];
    let lock = lock_row(site, agent).await?;
    let (blocked, prompt) = tokio::join!(agent.refused_heartbeat(), async {
        let began = Instant::now();
        for other in &others {
            other.heartbeat().await?.report_acked(1..=1).await?;
        }
        anyhow::Ok(began.elapsed())
    });
    ensure!(prompt? < PROMPT, "others waited");
    blocked?.assert(Code::Unavailable, "DATABASE_UNAVAILABLE");
    lock.release().await?;
    timeout(PROMPT, agent.heartbeat()).await??;
    site.expect("SELECT epoch FROM agent_state", "1\n1\n1")
        .await
}

/// The request of a client that has connected to another instance meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_outlived_its_client_displaces_no_live_stream() -> Result<()> {
    let World {
        site,
        instance,
        agent,
    } = &World::new().await?;
    let sibling = site.instance().start().await?;
    let other = ActiveAgent::new(site, instance.grpc, 2).await?;
    let lock = lock_row(site, agent).await?;
    let abandoned = open_and_forget(agent);
    opens(instance, |count| count >= 2).await?;
    abandoned.abort();
    lock.release().await?;
    let mut live = agent.heartbeat_at(sibling.grpc).await?;
    // The instance serves requests in their order, so it has done with the abandoned one after this.
    let _other = other.heartbeat().await?;
    live.report_acked(1..=1).await?;
    site.expect(EPOCH, "online|1\nonline|1").await
}

/// It was the database that was slow, and the agent is about to try again.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gave_up_waiting_for_a_slow_database_gets_time_to_come_back() -> Result<()> {
    let World {
        site,
        instance,
        agent,
    } = &World::new().await?;
    // A lock that is held for more than two seconds fails the statement, and nothing is opened.
    eventually("a session was opened for nobody", async || {
        open_for_nobody(site, instance, agent).await.is_ok()
    })
    .await?;
    let given = "SELECT presence, cause, online_until > now() FROM agent_state";
    site.becomes(given, "online|drained|t").await?;
    let mut live = agent.heartbeat().await?;
    live.report_acked(1..=1).await?;
    let offline = "SELECT count(*) FROM agent_events WHERE to_status = 'offline'";
    site.expect(offline, "0").await?;
    live.report_acked(2..=2).await
}

/// The client leaves while the statement that opens its session waits for a lock.
async fn open_for_nobody(site: &Site, instance: &Instance, agent: &ActiveAgent) -> Result<()> {
    let lock = site.hold("SELECT FROM ingest_instances FOR UPDATE").await?;
    let abandoned = open_and_forget(agent);
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- sessions_open%'";
    site.becomes(waiting, "1").await?;
    abandoned.abort();
    eventually("the client is gone", async || {
        let open = metric(instance.http, "connections").await;
        open.is_ok_and(|open| open == 0.0)
    })
    .await?;
    lock.release().await?;
    site.becomes("SELECT count(*) FROM agent_state WHERE epoch > 0", "1")
        .await
}

/// PostgreSQL gets to the request after the instance has given it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_a_frozen_database_delays_displaces_no_live_stream() -> Result<()> {
    let mut site = Site::with_own_server().await?;
    let [instance, sibling] = site.instance().start_pair().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    site.postgres().freeze()?;
    let abandoned = open_and_forget(&agent);
    opens(&instance, |count| count >= 1).await?;
    abandoned.abort();
    site.postgres().thaw()?;
    let mut live = agent.heartbeat_in_time(sibling.grpc).await?;
    let late = "SELECT count(*) FROM pg_stat_activity
                 WHERE state = 'active' AND query LIKE '-- sessions_open%'";
    site.becomes(late, "0").await?;
    live.report_acked(1..=1).await?;
    site.expect(EPOCH, "online|1").await
}

/// A network that delays each message to and from the database, and agents that do not wait for it: they
/// connect to another instance after a moment. Their requests arrive later than their new streams.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_abandoned_requests_on_a_slow_database_displaces_no_live_stream() -> Result<()> {
    let site = Site::new().await?;
    let (proxy, url) = behind_proxy(&site).await?;
    let slow = site.instance().set("DATABASE_URL", url).timing(|timing| {
        timing.freshness = Duration::from_mins(5);
    });
    let (slow, sibling) = (slow.start().await?, site.instance().start().await?);
    let mut agents = Vec::new();
    for number in 0..STORM {
        agents.push(ActiveAgent::new(&site, slow.grpc, number).await?);
    }
    proxy.delay(Duration::from_millis(700));
    let mut storm = JoinSet::new();
    for (turn, agent) in (0..).zip(agents) {
        let sibling = sibling.grpc;
        storm.spawn(async move {
            let abandoned = open_and_forget(&agent);
            // From less than the delay to more than two of them.
            tokio::time::sleep(Duration::from_millis(100 + turn * 60)).await;
            abandoned.abort();
            loop {
                match agent.heartbeat_at(sibling).await {
                    Ok(live) => break live,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
    }
    let mut live = storm.join_all().await;
    // Whatever the instance has sent arrives before this.
    ActiveAgent::new(&site, sibling.grpc, STORM).await?;
    opens_are_done(&slow).await?;
    for call in &mut live {
        call.report_acked(1..=1).await?;
    }
    let elsewhere = format!(
        "SELECT count(*) FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id
          WHERE i.grpc_address = '{}' AND s.presence = 'online'",
        sibling.grpc
    );
    site.expect(&elsewhere, &STORM.to_string()).await
}

/// Sends Hello where the agent registered, and does not care about the answer.
fn open_and_forget(agent: &ActiveAgent) -> JoinHandle<Result<()>> {
    let agent = agent.clone();
    tokio::spawn(async move { agent.heartbeat().await.map(drop) })
}

/// Waits until the instance has called `sessions_open` so many times. A call counts when it has ended.
async fn opens(instance: &Instance, enough: impl Fn(u64) -> bool) -> Result<()> {
    eventually("streams were requested from the database", async || {
        let count = transaction_count(instance.http, "sessions_open").await;
        count.is_ok_and(&enough)
    })
    .await
}

/// Waits until the instance has no connection in use for opening streams, twice in a row.
async fn opens_are_done(instance: &Instance) -> Result<()> {
    let in_use = r#"database_pool_in_use{bulkhead="auth"}"#;
    let mut before = false;
    eventually("nothing is being opened", async || {
        let now = metric(instance.http, in_use).await;
        let now = now.is_ok_and(|in_use| in_use == 0.0);
        std::mem::replace(&mut before, now) && now
    })
    .await
}

/// A transaction that holds an agent's row.
async fn lock_row<'a>(site: &'a Site, agent: &ActiveAgent) -> Result<Held<'a>> {
    let id = &agent.id;
    let row = format!("SELECT FROM agent_state WHERE agent_id = '{id}' FOR UPDATE");
    site.hold(&row).await
}
