//! Clients that have proven nothing: what they send takes little memory and little time, and agents do not notice them.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_ingest::{budget::BudgetBounds, listener::Limits};
use svc_proto::v1::HostFacts;
use svc_sandbox::Identity;
use svc_testkit::{
    AUTO, ActiveAgent, FakeAgent, OneConnection, PATIENCE, Site, Tls, eventually,
    faults::{HalfSent, Stranger, half_sent_by_strangers},
    is_active, machine, token,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::Code;

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_messages_of_strangers_take_little_memory() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let agent = ActiveAgent::new(&site, process.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    for (strangers, call) in [(20, HalfSent::REFLECTION), (100, HalfSent::REGISTER)] {
        let length = Duration::from_secs(8);
        let grown = half_sent_by_strangers(&process, strangers, call, length).await?;
        ensure!(
            grown < 64 * MIB,
            "{} MiB for {strangers} strangers: {call:?}",
            grown / MIB
        );
    }
    stream.report_acked(1..=3).await?;
    stream.goodbye().await
}

/// A machine whose Register and Hello have 16 KiB.
fn large_machine(number: u32) -> HostFacts {
    HostFacts {
        ip_addresses: vec!["a".repeat(250); 64],
        ..machine(number)
    }
}

/// One stranger takes all the room, and loses it by the deadline of its call.
#[tokio::test]
async fn a_large_message_without_room_is_refused_and_usual_agents_are_not() -> Result<()> {
    let site = Site::new().await?;
    let scarce = BudgetBounds {
        opening: 64 << 10,
        ..BudgetBounds::default()
    };
    let patient = |limits: &mut Limits| limits.response_deadline = Duration::from_secs(25);
    let builder = site.instance().report_budget(scarce).limits(patient);
    let instance = builder.start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    let secret = token(&site, AUTO.uses(10)).await?;

    let stranger = Stranger::connect(instance.grpc).await?;
    let (deadline, _body) = stranger.half_send(HalfSent::REGISTER).await?;
    let large = FakeAgent::on(large_machine(2))?;
    let refused = large.refused(instance.grpc, &secret).await?;
    refused.assert_with_delay(Code::Unavailable, "OVERLOADED");
    let hello = agent.copied_to(large_machine(1));
    let refused = hello.refused_heartbeat().await?;
    refused.assert_with_delay(Code::Unavailable, "OVERLOADED");
    let newcomer = ActiveAgent::new(&site, instance.grpc, 3).await?;
    newcomer.heartbeat().await?.report_acked(1..=3).await?;
    stream.report_acked(1..=3).await?;

    let ended = timeout(PATIENCE, deadline).await??;
    ensure!(ended.headers()["grpc-status"] == "4", "{ended:?}");
    eventually("there is room", async || {
        let answer = large.register(instance.grpc, &secret).await;
        answer.is_ok_and(|answer| is_active(&answer))
    })
    .await?;
    // The room of an open stream is free again.
    let _streams = [hello.heartbeat().await?, hello.heartbeat().await?];
    ensure!(is_active(&large.register(instance.grpc, &secret).await?));
    instance.stop().await
}

#[tokio::test]
async fn an_unproven_connection_has_few_calls_in_progress() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let stranger = Stranger::connect(instance.grpc).await?;
    let short = HalfSent {
        length: 100,
        ..HalfSent::REGISTER
    };
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(stranger.half_send(short).await?);
    }
    let (answer, _body) = stranger.half_send(short).await?;
    let answer = timeout(PATIENCE, answer).await??;
    ensure!(answer.headers()["grpc-status"] == "14", "{answer:?}");
    instance.stop().await
}

/// Checks the health so many times over one connection. Each check is two frames, which cost 4 KiB.
async fn checks(mut client: OneConnection, count: u32) -> Result<()> {
    for _ in 0..count {
        ensure!(client.health_status().await? == "0");
    }
    Ok(())
}

/// 160 checks cost 640 KiB: 128 KiB at once, and 512 KiB at 128 KiB/s.
#[tokio::test]
async fn a_connection_is_read_slowly_until_it_is_proven() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let tls = Tls::with(&Identity::self_signed("stranger")?);
    let began = Instant::now();
    checks(OneConnection::open(&tls, instance.grpc).await?, 160).await?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(3500), "{took:?}");
    instance.stop().await
}

/// 40 strangers with 72 checks each: beyond the first 128 KiB of each they cost 6 MiB, which are read at 1 MiB/s.
#[tokio::test(flavor = "multi_thread")]
async fn all_strangers_share_one_rate_and_newcomers_do_not_wait_for_them() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    let (address, began) = (instance.grpc, Instant::now());
    let mut strangers = JoinSet::new();
    for _ in 0..40 {
        strangers.spawn(async move {
            let tls = Tls::with(&Identity::self_signed("stranger")?);
            checks(OneConnection::open(&tls, address).await?, 72).await
        });
    }
    for number in 2..6 {
        let newcomer = ActiveAgent::new(&site, instance.grpc, number).await?;
        newcomer.heartbeat().await?.report_acked(1..=3).await?;
    }
    stream.report_acked(1..=3).await?;
    strangers
        .join_all()
        .await
        .into_iter()
        .collect::<Result<()>>()?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(5500), "{took:?}");
    instance.stop().await
}
