//! Registration under races, lost replies and several instances: a token with N uses admits exactly
//! N keys, and no JWT is issued after a revocation.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures_util::future::join_all;
use rand::seq::IndexedRandom;
use svc_proto::v1::AgentStatus;
use svc_testkit::{AUTO, FakeAgent, MANUAL, Proxy, Site, is_active, machine, token};
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn five_uses_admit_exactly_five_of_two_hundred_keys_when_replies_are_lost() -> Result<()> {
    let site = Site::new().await?;
    let pairs = [
        site.instance().start_pair().await?,
        site.instance().start_pair().await?,
    ];
    let instances = pairs.iter().flatten();
    let direct: Vec<SocketAddr> = instances.map(|instance| instance.grpc).collect();
    let secret = token(&site, AUTO.uses(5)).await?;
    let proxy = Proxy::start(direct.clone()).await?;
    let calls = (0..200_u32).map(|number| {
        // Every other call goes through a proxy that cuts its reply somewhere.
        let address = match number % 2 {
            0 => proxy.address(),
            _ => direct[number as usize % 4],
        };
        let secret = secret.clone();
        tokio::spawn(async move {
            let agent = FakeAgent::on(machine(number))?;
            anyhow::Ok((agent.register(address, &secret).await.ok(), agent))
        })
    });
    let mut admitted = 0;
    let mut unanswered = Vec::new();
    for call in cutting_at_random(&proxy, join_all(calls)).await {
        match call?? {
            (Some(answer), _) => admitted += usize::from(is_active(&answer)),
            (None, agent) => unanswered.push(agent),
        }
    }
    let stored = "SELECT count(*), (SELECT uses FROM enrolment_tokens) FROM agents";
    site.expect(stored, "5|5").await?;
    // An admitted agent whose reply was lost gets its JWT on the next call.
    for agent in unanswered {
        let address = *direct.choose(&mut rand::rng()).expect("an instance");
        let answer = agent.register(address, &secret).await;
        admitted += usize::from(answer.is_ok_and(|answer| is_active(&answer)));
    }
    assert_eq!(admitted, 5);
    site.expect(stored, "5|5").await
}

/// Each new connection through the proxy ends somewhere between the handshake and the reply.
async fn cutting_at_random<T>(proxy: &Proxy, calls: impl Future<Output = T>) -> T {
    let mut calls = std::pin::pin!(calls);
    loop {
        proxy.cut_after(Some(rand::random_range(800..3000)));
        if let Ok(outcome) = timeout(Duration::from_millis(2), &mut calls).await {
            return outcome;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_called_many_times_at_once_is_one_agent_and_one_use() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.instance().start_pair().await?;
    let secret = token(&site, AUTO.uses(1)).await?;
    let agent = Arc::new(FakeAgent::on(machine(1))?);
    // An instance allows four connections per key, and four calls at a time on each until it is proven.
    let mut clients = Vec::new();
    for instance in instances.iter().chain(&instances) {
        clients.push(agent.connect(instance.grpc).await?);
    }
    let calls = (0..10).map(|number| {
        let (mut client, request) = (clients[number % 4].clone(), agent.request(&secret));
        tokio::spawn(async move { client.register(request).await?.into_inner().message().await })
    });
    for call in join_all(calls).await {
        let answer = call??.expect("an answer");
        assert!(is_active(&answer));
    }
    let stored = "SELECT count(*), (SELECT uses FROM enrolment_tokens), (SELECT count(*) FROM hosts) FROM agents";
    site.expect(stored, "1|1|1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_with_many_keys_at_once_is_one_host_and_one_active_agent() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.instance().start_pair().await?;
    let secret = token(&site, AUTO).await?;
    let calls = (0..12_usize).map(|number| {
        let (address, secret) = (instances[number % 2].grpc, secret.clone());
        tokio::spawn(async move { FakeAgent::on(machine(1))?.register(address, &secret).await })
    });
    let mut statuses = Vec::new();
    for call in join_all(calls).await {
        statuses.push(call??.status());
    }
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(AgentStatus::Active), 1);
    assert_eq!(count(AgentStatus::Pending), 11);
    let stored =
        "SELECT (SELECT count(*) FROM hosts), count(*) FILTER (WHERE pending_reason = 'conflict'),
                         count(*) FILTER (WHERE status = 'revoked') FROM agents";
    // Replicas of one image do not revoke one another.
    site.expect(stored, "1|11|0").await
}

/// In each round, a revocation and a registration run at once. The registration may return a JWT;
/// one that starts after the commit never does.
#[tokio::test(flavor = "multi_thread")]
async fn no_jwt_is_issued_after_a_revocation_has_committed() -> Result<()> {
    const ROUNDS: u32 = 60;
    let (site, instance) = Site::with_instance().await?;
    let secret = token(&site, AUTO.uses(10_000)).await?;
    let mut raced = 0;
    for number in 0..ROUNDS {
        let agent = FakeAgent::on(machine(number))?;
        let client = agent.connect(instance.grpc).await?;
        let register = async |token: &str| {
            let answer = client.clone().register(agent.request(token)).await?;
            let first = answer.into_inner().message().await?;
            first.context("no answer")
        };
        let id = register(&secret).await?.agent_id;
        let revocation = format!("SELECT revoke_agent('{id}', 'ann')");
        let (revoked, racing) = tokio::join!(site.psql(&revocation), register(""));
        revoked?;
        raced += usize::from(is_active(&racing?));
        let after = register("").await?;
        assert_eq!(after.status(), AgentStatus::Revoked);
        assert!(!is_active(&after));
    }
    println!("{raced} of {ROUNDS} had their JWT before the revocation");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_poll_finds_an_approval_when_notifications_are_cut_off() -> Result<()> {
    let site = Site::new().await?;
    let builder = site.instance().without_notifications();
    let builder = builder.timing(|timing| timing.poll = Duration::from_millis(200));
    let instance = builder.start().await?;
    let secret = token(&site, MANUAL).await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent.pending(instance.grpc, &secret).await?;
    site.decide_all("approve").await?;
    assert!(is_active(&stream.answer().await?));
    Ok(())
}
