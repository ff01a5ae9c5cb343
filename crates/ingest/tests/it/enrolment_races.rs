//! Registration under races, lost replies and several instances: a token with N
//! uses admits exactly N keys, and no JWT leaves after a revocation.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use rand::seq::IndexedRandom;
use svc_proto::v1::AgentStatus;
use svc_sandbox::Proxy;
use tokio::time::timeout;

use crate::{
    agents::{AUTO, FakeAgent, MANUAL, TokenRules, is_active, machine, token},
    harness::{Instance, PATIENCE, Site},
};

async fn instances(site: &Site, count: usize) -> anyhow::Result<Vec<Instance>> {
    let mut started = Vec::new();
    for _ in 0..count {
        started.push(site.instance().start().await?);
    }
    Ok(started)
}

#[tokio::test(flavor = "multi_thread")]
async fn five_uses_admit_exactly_five_of_two_hundred_keys_though_replies_are_cut()
-> anyhow::Result<()> {
    let site = Site::new().await?;
    let instances = instances(&site, 4).await?;
    let secret = token(
        &site,
        TokenRules {
            max_uses: 5,
            ..AUTO
        },
    )
    .await?;
    let proxy = Proxy::start(instances.iter().map(|instance| instance.grpc).collect()).await?;
    let direct: Vec<SocketAddr> = instances.iter().map(|instance| instance.grpc).collect();
    let calls = (0..200_u32).map(|number| {
        // Every other call goes through a proxy that cuts its reply somewhere.
        let address = if number % 2 == 0 {
            proxy.address()
        } else {
            direct[number as usize % 4]
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
    assert_eq!(site.psql(stored).await?, "5|5");
    // Whoever was admitted but never heard of it is told on the next call.
    for agent in unanswered {
        let address = *direct.choose(&mut rand::rng()).expect("an instance");
        admitted += usize::from(
            agent
                .register(address, &secret)
                .await
                .is_ok_and(|answer| is_active(&answer)),
        );
    }
    assert_eq!(admitted, 5);
    assert_eq!(site.psql(stored).await?, "5|5");
    Ok(())
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
async fn one_key_called_many_times_at_once_is_one_agent_and_one_use() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instances = instances(&site, 2).await?;
    let secret = token(
        &site,
        TokenRules {
            max_uses: 1,
            ..AUTO
        },
    )
    .await?;
    let agent = Arc::new(FakeAgent::on(machine(1))?);
    // Four connections a key and instance are allowed: five calls share each of two.
    let mut clients = Vec::new();
    for instance in &instances {
        clients.push(agent.connect(instance.grpc).await?);
    }
    let calls = (0..10).map(|number| {
        let (mut client, request) = (clients[number % 2].clone(), agent.request(&secret));
        tokio::spawn(async move { client.register(request).await?.into_inner().message().await })
    });
    for call in join_all(calls).await {
        let answer = call??.expect("an answer");
        assert!(is_active(&answer));
    }
    let stored = "SELECT count(*), (SELECT uses FROM enrolment_tokens), (SELECT count(*) FROM hosts) FROM agents";
    assert_eq!(site.psql(stored).await?, "1|1|1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_with_many_keys_at_once_is_one_host_and_one_active_agent() -> anyhow::Result<()>
{
    let site = Site::new().await?;
    let instances = instances(&site, 2).await?;
    let secret = token(&site, AUTO).await?;
    let calls = (0..12_usize).map(|number| {
        let (address, secret) = (instances[number % 2].grpc, secret.clone());
        tokio::spawn(async move { FakeAgent::on(machine(1))?.register(address, &secret).await })
    });
    let mut statuses = Vec::new();
    for call in join_all(calls).await {
        statuses.push(call??.status());
    }
    assert_eq!(
        statuses
            .iter()
            .filter(|status| **status == AgentStatus::Active)
            .count(),
        1
    );
    assert_eq!(
        statuses
            .iter()
            .filter(|status| **status == AgentStatus::Pending)
            .count(),
        11
    );
    let stored =
        "SELECT (SELECT count(*) FROM hosts), count(*) FILTER (WHERE pending_reason = 'conflict'),
                         count(*) FILTER (WHERE status = 'revoked') FROM agents";
    assert_eq!(
        site.psql(stored).await?,
        "1|11|0",
        "replicas of one image do not revoke one another"
    );
    Ok(())
}

/// Each round: a decision waits for its commit while the agent asks. Before the
/// commit it may have a JWT; after it, never.
#[tokio::test(flavor = "multi_thread")]
async fn no_jwt_is_released_after_a_revocation_committed() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let secret = token(
        &site,
        TokenRules {
            max_uses: 10_000,
            ..AUTO
        },
    )
    .await?;
    let mut raced = 0;
    for number in 0..60 {
        let agent = FakeAgent::on(machine(number))?;
        let mut client = agent.connect(instance.grpc).await?;
        let registered = client
            .register(agent.request(&secret))
            .await?
            .into_inner()
            .message()
            .await?;
        let id = registered.expect("an answer").agent_id;
        let revocation = format!("SELECT revoke_agent('{id}', 'ann')");
        let (revoked, racing) =
            tokio::join!(site.psql(&revocation), client.register(agent.request("")));
        revoked?;
        let racing = racing?.into_inner().message().await?.expect("an answer");
        raced += usize::from(is_active(&racing));
        let after = client
            .register(agent.request(""))
            .await?
            .into_inner()
            .message()
            .await?
            .expect("an answer");
        assert_eq!(after.status(), AgentStatus::Revoked);
        assert!(!is_active(&after));
    }
    println!("{raced} of 60 had their JWT before the revocation");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_arrives_though_notifications_are_cut_off() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let nowhere = "postgres://svc@127.0.0.1:1/svc";
    let builder = site.instance().set("INGEST_LISTEN_DATABASE_URL", nowhere);
    let instance = builder
        .timing(|timing| timing.poll = Duration::from_millis(200))
        .start()
        .await?;
    let agent = FakeAgent::on(machine(1))?;
    let mut stream = agent
        .open(instance.grpc, &token(&site, MANUAL).await?)
        .await??;
    stream.answer().await?;
    site.psql("SELECT approve_agent(id, 'ann') FROM agents")
        .await?;
    assert!(is_active(&stream.answer().await?));
    Ok(())
}

/// The poll is far away, so it is the notification that brings the decision.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_arrives_by_notification_on_every_instance() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let mut waiting = Vec::new();
    let secret = token(&site, MANUAL).await?;
    let mut instances = Vec::new();
    for number in 0..3 {
        let builder = site.instance().timing(|timing| timing.poll = PATIENCE * 10);
        let instance = builder.start().await?;
        let mut stream = FakeAgent::on(machine(number))?
            .open(instance.grpc, &secret)
            .await??;
        stream.answer().await?;
        waiting.push(stream);
        instances.push(instance);
    }
    site.psql("SELECT approve_agent(id, 'ann') FROM agents")
        .await?;
    for stream in &mut waiting {
        assert!(is_active(&stream.answer().await?));
    }
    Ok(())
}
