//! Clients that have proven nothing: what they send takes little memory and little time, and agents do not notice them.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use http::HeaderMap;
use svc_front::listener::Limits;
use svc_ingest::config::Config;
use svc_pipeline::budget::BudgetBounds;
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
    let (site, process) = Site::with_process().await?;
    let agent = ActiveAgent::new(&site, process.grpc, 1).await?;
    let mut stream = agent.heartbeat().await?;
    for (strangers, call) in [
        (20, HalfSent::REFLECTION),
        (20, HalfSent::HEALTH),
        (20, HalfSent::UNKNOWN),
        (100, HalfSent::REGISTER),
    ] {
        let length = Duration::from_secs(3);
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
async fn a_large_registration_without_room_is_refused_and_agents_are_not() -> Result<()> {
    let site = Site::new().await?;
    let scarce = |config: &mut Config| {
        config.grpc.limits.response_deadline = Duration::from_secs(12);
        config.grpc.report_budget = BudgetBounds {
            register: 64 << 10,
            hello: 20 << 10,
            opening_wait: Duration::from_secs(1),
            ..BudgetBounds::default()
        };
    };
    let (instance, agent) = site.instance().config(scarce).with_agent(&site).await?;
    let mut stream = agent.heartbeat().await?;
    let secret = token(&site, AUTO.uses(10)).await?;

    let stranger = Stranger::connect(instance.grpc).await?;
    let (deadline, _body) = stranger.half_send(HalfSent::REGISTER).await?;
    let large = FakeAgent::on(large_machine(2))?;
    let refused = large.refused(instance.grpc, &secret).await?;
    refused.assert_with_delay(Code::Unavailable, "OVERLOADED");
    // The room of an open stream is free again.
    let hello = ActiveAgent::new(&site, instance.grpc, 4).await?;
    let hello = hello.copied_to(large_machine(4));
    for _ in 0..2 {
        hello.heartbeat().await?.report_acked(1..=3).await?;
    }
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

/// A stranger whose registrations are as large as they may be, and malformed. Each is read for 64 KiB, and 2 KiB for each frame.
async fn malformed(address: SocketAddr, count: u32) -> Result<()> {
    let tls = Tls::with(&Identity::self_signed("stranger")?);
    let mut stranger = OneConnection::open(&tls, address).await?;
    let body = [&[0, 0, 0, 255, 251][..], &[0; 65_531]].concat();
    for _ in 0..count {
        let answer = stranger
            .ask(HalfSent::REGISTER.path, HeaderMap::new(), body.clone())
            .await?;
        ensure!(answer["grpc-status"] == "3", "{answer:?}");
    }
    Ok(())
}

/// 640 KiB: 128 KiB at once, and 512 KiB at 128 KiB/s.
#[tokio::test]
async fn a_connection_is_read_slowly_until_it_is_proven() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let began = Instant::now();
    malformed(instance.grpc, 10).await?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(3500), "{took:?}");
    instance.stop().await
}

/// Beyond the first 128 KiB of each, 64 strangers send 8 MiB, which are read at 1 MiB/s.
#[tokio::test(flavor = "multi_thread")]
async fn all_strangers_share_one_rate_and_newcomers_do_not_wait_for_them() -> Result<()> {
    let site = Site::new().await?;
    let patient = |limits: &mut Limits| limits.response_deadline = PATIENCE;
    let (instance, agent) = site.instance().limits(patient).with_agent(&site).await?;
    let mut stream = agent.heartbeat().await?;
    let began = Instant::now();
    let strangers: JoinSet<_> = (0..64).map(|_| malformed(instance.grpc, 4)).collect();
    for number in 2..6 {
        let newcomer = ActiveAgent::new(&site, instance.grpc, number).await?;
        newcomer.heartbeat().await?.report_acked(1..=3).await?;
    }
    stream.report_acked(1..=3).await?;
    // On a slow machine the short lives of some end first.
    drop(strangers.join_all().await);
    let took = began.elapsed();
    ensure!(took > Duration::from_secs(7), "{took:?}");
    instance.stop().await
}
