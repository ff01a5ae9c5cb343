//! Places of connections: clients that have proven nothing neither keep agents out nor stay long.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, bail, ensure};
use futures_util::stream;
use svc_front::listener::Limits;
use svc_proto::v1::{HeartbeatResponse, ingest_service_client::IngestServiceClient};
use svc_sandbox::Identity;
use svc_testkit::{
    AUTO, ActiveAgent, FakeAgent, Instance, MANUAL, OneConnection, RefusedCall, Site, Tls,
    eventually, is_active, machine, metric, metric_becomes, token,
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};
use tonic::{Request, Response, Status, Streaming, transport::Channel};

/// Connections with self-made certificates, each of which has had a health check. Some are evicted already.
async fn strangers(address: SocketAddr, count: usize) -> Result<Vec<OneConnection>> {
    let mut strangers = Vec::new();
    for _ in 0..count {
        let tls = Tls::with(&Identity::self_signed("stranger")?);
        let mut stranger = OneConnection::open(&tls, address).await?;
        ensure!(stranger.health_status().await? == "0");
        strangers.push(stranger);
    }
    Ok(strangers)
}

#[tokio::test]
async fn strangers_on_all_places_keep_no_agent_out() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_MAX_CONNECTIONS", "50");
    let (instance, agent) = builder.with_agent(&site).await?;
    let mut held = strangers(instance.grpc, 60).await?;
    let mut stream = agent.heartbeat().await?;
    held.extend(strangers(instance.grpc, 60).await?);
    stream.report_acked(1..=3).await?;
    let other = ActiveAgent::new(&site, instance.grpc, 2).await?;
    other.heartbeat().await?.report_acked(1..=3).await?;
    ensure!(metric(instance.http, "connections_evicted_total").await? > 0.0);
    metric_becomes(instance.http, "connections_unproven", |open| open <= 16.0).await?;
    metric_becomes(instance.http, "connections", |open| open <= 20.0).await?;
    stream.goodbye().await
}

#[tokio::test]
async fn silent_connections_on_all_places_keep_no_agent_out() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_MAX_CONNECTIONS", "20");
    let (instance, agent) = builder.with_agent(&site).await?;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(instance.grpc).await?);
    }
    agent.heartbeat().await?.report_acked(1..=3).await
}

/// A connection with a heartbeat call over it whose Hello never comes, and what the call was answered.
struct Withheld {
    _connection: IngestServiceClient<Channel>,
    answer: Result<Response<Streaming<HeartbeatResponse>>, Status>,
}

impl Withheld {
    async fn open(agent: &FakeAgent, jwt: &str, address: SocketAddr) -> Result<Self> {
        let mut connection = agent.connect(address).await?;
        let mut request = Request::new(stream::pending());
        let bearer = format!("Bearer {jwt}").parse()?;
        request.metadata_mut().insert("authorization", bearer);
        let answer = connection.heartbeat(request).await;
        Ok(Self {
            _connection: connection,
            answer,
        })
    }
}

async fn revoke(site: &Site, agent: &ActiveAgent) -> Result<()> {
    let sql = format!("SELECT revoke_agent('{}', 'ann', 'stolen')", agent.id);
    site.psql(&sql).await.map(drop)
}

/// The thief's JWT is of an agent that this instance has never met.
#[tokio::test]
async fn a_jwt_over_self_made_keys_without_hello_keeps_no_agent_out() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_MAX_CONNECTIONS", "50");
    let [instance, sibling] = builder.start_pair().await?;
    let agent = ActiveAgent::new(&site, sibling.grpc, 1).await?;
    let stolen = ActiveAgent::new(&site, sibling.grpc, 2).await?;
    revoke(&site, &stolen).await?;
    let mut held = Vec::new();
    for _ in 0..16 {
        let thief = FakeAgent::on(machine(2))?;
        held.push(Withheld::open(&thief, &stolen.jwt, instance.grpc).await?);
    }
    let mut stream = agent.heartbeat_at(instance.grpc).await?;
    stream.report_acked(1..=3).await?;
    for thief in held {
        let refused = thief.answer.expect_err("another key than the agent's");
        assert_eq!(RefusedCall::of(&refused).reason, "KEY_MISMATCH");
    }
    stream.goodbye().await
}

/// As many connections as one key may have, and no more places for the unproven.
#[tokio::test]
async fn an_agent_that_withholds_hello_keeps_no_other_out() -> Result<()> {
    let site = Site::new().await?;
    let few = |limits: &mut Limits| limits.unproven = limits.connections_per_key;
    let (instance, agent) = site.instance().limits(few).with_agent(&site).await?;
    let revoked = ActiveAgent::new(&site, instance.grpc, 2).await?;
    revoke(&site, &revoked).await?;
    metric_becomes(instance.http, "connections", |open| open == 0.0).await?;
    let mut held = Vec::new();
    for _ in 0..4 {
        let withheld = Withheld::open(&revoked.agent, &revoked.jwt, instance.grpc).await?;
        ensure!(withheld.answer.is_ok(), "the service waits for Hello");
        held.push(withheld);
    }
    let mut stream = agent.heartbeat().await?;
    stream.report_acked(1..=3).await?;
    ensure!(metric(instance.http, "connections_evicted_total").await? > 0.0);
    stream.goodbye().await
}

#[tokio::test]
async fn a_pending_registration_has_proven_its_token_and_keeps_its_place() -> Result<()> {
    let site = Site::new().await?;
    let short = |limits: &mut Limits| {
        (limits.connections, limits.unproven) = (20, 5);
        limits.unproven_life = Duration::from_secs(1);
    };
    let instance = site.instance().limits(short).start().await?;
    let secret = token(&site, MANUAL).await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut pending = agent.pending(instance.grpc, &secret).await?;
    let waits_since = Instant::now();
    let _strangers = strangers(instance.grpc, 30).await?;
    eventually("its life would be over if it were unproven", async || {
        waits_since.elapsed() > Duration::from_secs(3)
    })
    .await?;
    site.decide_all("approve").await?;
    assert!(is_active(&pending.answer().await?));
    Ok(())
}

/// It waits for longer than the deadline of other calls, too.
#[tokio::test]
async fn a_newcomer_that_waits_with_a_valid_token_takes_no_place_of_the_unproven() -> Result<()> {
    let site = Site::new().await?;
    let short = |limits: &mut Limits| limits.response_deadline = Duration::from_secs(1);
    let instance = site.instance().limits(short).start().await?;
    let secret = token(&site, AUTO).await?;
    // On a slow machine the lock may be gone before the metrics are read, or the deadline over before the token is found.
    for number in 1..=5 {
        metric_becomes(instance.http, "connections", |open| open == 0.0).await?;
        let lock = site.psql("BEGIN; LOCK TABLE hosts; SELECT pg_sleep(3); COMMIT");
        let vouched = async {
            eventually("nobody can be registered", async || locked(&site).await).await?;
            let agent = FakeAgent::on(machine(number))?;
            let registering = agent.register(instance.grpc, &secret);
            let (answer, vouched) =
                tokio::join!(registering, vouched_while_locked(&site, &instance));
            anyhow::Ok(vouched? && answer.is_ok_and(|answer| is_active(&answer)))
        };
        let (unlocked, vouched) = tokio::join!(lock, vouched);
        unlocked?;
        if vouched? {
            return Ok(());
        }
    }
    bail!("a registration was unproven, or cut off, while it waited")
}

/// The connection would be closed a second after the end of its short life.
#[tokio::test]
async fn a_registration_with_a_valid_token_outlasts_the_short_life_of_its_connection() -> Result<()>
{
    let site = Site::new().await?;
    let short = |limits: &mut Limits| limits.unproven_life = Duration::from_secs(2);
    let instance = site.instance().limits(short).start().await?;
    let secret = token(&site, AUTO).await?;
    // On a slow machine the life may be over before the token is found.
    for number in 1..=5 {
        let lock = site.psql("BEGIN; LOCK TABLE hosts; SELECT pg_sleep(6); COMMIT");
        let registered = async {
            eventually("nobody can be registered", async || locked(&site).await).await?;
            let agent = FakeAgent::on(machine(number))?;
            anyhow::Ok(agent.register(instance.grpc, &secret).await)
        };
        let (unlocked, registered) = tokio::join!(lock, registered);
        unlocked?;
        if registered?.is_ok_and(|answer| is_active(&answer)) {
            return Ok(());
        }
    }
    bail!("a registration was cut off while it waited")
}

async fn locked(site: &Site) -> bool {
    let lock = "SELECT count(*) FROM pg_locks WHERE relation = 'hosts'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    site.psql(lock).await.is_ok_and(|count| count == "1")
}

async fn vouched_while_locked(site: &Site, instance: &Instance) -> Result<bool> {
    loop {
        let open = metric(instance.http, "connections").await?;
        let unproven = metric(instance.http, "connections_unproven").await?;
        let locked = locked(site).await;
        if !locked || open > unproven {
            return Ok(locked);
        }
    }
}

#[tokio::test]
async fn a_connection_that_proves_nothing_has_a_short_life() -> Result<()> {
    let site = Site::new().await?;
    let short = |limits: &mut Limits| limits.unproven_life = Duration::from_secs(1);
    let (instance, agent) = site.instance().limits(short).with_agent(&site).await?;
    let mut stream = agent.heartbeat().await?;
    let tls = Tls::with(&Identity::self_signed("stranger")?);
    let mut stranger = OneConnection::open(&tls, instance.grpc).await?;
    let began = Instant::now();
    while stranger.health_status().await.is_ok() {
        ensure!(
            began.elapsed() < Duration::from_secs(20),
            "it is still open"
        );
        sleep(Duration::from_millis(50)).await;
    }
    ensure!(
        began.elapsed() > Duration::from_millis(500),
        "it was closed too soon"
    );
    stranger.closed().await?;
    // A refused registration proves nothing either.
    let refused = FakeAgent::on(machine(2))?
        .refused(instance.grpc, "")
        .await?;
    assert_eq!(refused.reason, "MALFORMED_TOKEN");
    metric_becomes(instance.http, "connections_unproven", |open| open == 0.0).await?;
    stream.report_acked(1..=3).await?;
    stream.goodbye().await
}

#[tokio::test]
async fn connections_are_shed_and_counted_when_agents_hold_all_places() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_MAX_CONNECTIONS", "1");
    let (instance, agent) = builder.with_agent(&site).await?;
    let mut streams = Vec::new();
    eventually("the connection of the registration has ended", async || {
        streams.extend(agent.heartbeat().await.ok());
        !streams.is_empty()
    })
    .await?;
    let shed = metric(instance.http, "connections_shed_total").await?;
    ensure!(
        strangers(instance.grpc, 1).await.is_err(),
        "the limit is one"
    );
    ensure!(metric(instance.http, "connections_shed_total").await? > shed);
    streams.clear();
    eventually("the place is free", async || {
        strangers(instance.grpc, 1).await.is_ok()
    })
    .await?;
    instance.stop().await
}
