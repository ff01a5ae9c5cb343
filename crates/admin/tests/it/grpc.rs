//! The gRPC port: health, reflection, and refusals.

use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderMap;
use svc_sandbox::Identity;
use svc_testkit::{Instance, OneConnection, PATIENCE, RefusedCall, Site, Tls, channel, eventually};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

const SERVICE: &str = "svc.ingest.v1.IngestService";

async fn agent_channel(instance: &Instance) -> Result<Channel> {
    channel(instance.grpc, &Identity::self_signed("agent")?).await
}

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn health_covers_the_whole_server_and_the_service() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let mut health = HealthClient::new(agent_channel(&instance).await?);
    for service in ["", SERVICE] {
        let answer = health.check(about(service)).await?;
        assert_eq!(answer.get_ref().status(), ServingStatus::Serving);
    }
    let unknown = health.check(about("svc.other")).await;
    let code = unknown.err().map(|status| status.code());
    assert_eq!(code, Some(Code::NotFound));
    instance.stop().await
}

#[tokio::test]
async fn a_health_watch_sends_the_state_and_its_change() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().set("INGEST_DRAIN_TIMEOUT", "20s");
    let instance = instance.start().await?;
    let mut health = HealthClient::new(agent_channel(&instance).await?);
    let mut watch = health.watch(about(SERVICE)).await?.into_inner();
    let mut stranger = health.watch(about("svc.other")).await?.into_inner();
    let next = stranger.message().await?.context("an answer")?;
    assert_eq!(next.status(), ServingStatus::ServiceUnknown);
    drop(stranger);
    let next = watch.message().await?.context("an answer")?;
    assert_eq!(next.status(), ServingStatus::Serving);

    let stopping = instance.ask_to_stop();
    let next = timeout(PATIENCE, watch.message()).await??;
    let next = next.context("an answer")?.status();
    assert_eq!(next, ServingStatus::NotServing);
    drop((watch, health));
    stopping.ended().await
}

#[tokio::test]
async fn health_watches_are_limited_and_a_slot_is_freed_when_one_ends() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().set("INGEST_MAX_CONNECTIONS", "20");
    let instance = instance.start().await?;
    let mut health = HealthClient::new(agent_channel(&instance).await?);
    let first = health.watch(about("")).await?;
    let _second = health.watch(about("")).await?;
    let third = health.watch(about("")).await.expect_err("the limit is two");
    RefusedCall::of(&third).assert_with_delay(Code::Unavailable, "OVERLOADED");

    let checked = health.check(about("")).await?;
    assert_eq!(checked.get_ref().status(), ServingStatus::Serving);
    drop(first);
    eventually("a slot is free", async || {
        health.watch(about("")).await.is_ok()
    })
    .await?;
    instance.stop().await
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let tls = Tls::with(&Identity::self_signed("agent")?);
    let mut connection = OneConnection::open(&tls, instance.grpc).await?;
    for path in [
        "/svc.ingest.v1.IngestService/Nothing",
        "/svc.other/Method",
        "/",
    ] {
        let answer = connection.ask(path, HeaderMap::new(), vec![0; 5]).await?;
        let status = answer.get("grpc-status").context("no grpc-status")?;
        assert_eq!(status, "12", "{path}: {answer:?}");
    }
    instance.stop().await
}

#[tokio::test]
async fn reflection_lists_and_describes_the_service() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let mut reflection = ServerReflectionClient::new(agent_channel(&instance).await?);
    let ask = |request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let questions = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(SERVICE.to_owned())),
        // Clients look up the details of a refusal by the name of their type.
        ask(MessageRequest::FileContainingSymbol(
            "google.rpc.ErrorInfo".into(),
        )),
        ask(MessageRequest::FileContainingSymbol(
            "google.rpc.RetryInfo".into(),
        )),
    ]);
    let answers = reflection
        .server_reflection_info(questions)
        .await?
        .into_inner();
    let answers = answers.map(|answer| Ok(answer?.message_response));
    let answers = timeout(PATIENCE, answers.collect::<Result<Vec<_>>>()).await??;
    let [
        Some(MessageResponse::ListServicesResponse(list)),
        Some(MessageResponse::FileDescriptorResponse(files)),
        Some(MessageResponse::FileDescriptorResponse(_)),
        Some(MessageResponse::FileDescriptorResponse(_)),
    ] = &answers[..]
    else {
        anyhow::bail!("unexpected answers: {answers:?}");
    };
    for name in [SERVICE, "grpc.health.v1.Health"] {
        let listed = list.service.iter().any(|service| service.name == name);
        assert!(listed, "{name} is not in {list:?}");
    }
    assert!(!files.file_descriptor_proto.is_empty());
    instance.stop().await
}

#[tokio::test]
async fn a_key_may_have_four_busy_connections_and_an_idle_one_frees_its_slot() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let agent = Identity::self_signed("agent")?;
    let mut watches = Vec::new();
    for _ in 0..4 {
        let mut client = HealthClient::new(channel(instance.grpc, &agent).await?);
        watches.push((client.watch(about("")).await?, client));
    }
    let mut fifth = HealthClient::new(channel(instance.grpc, &agent).await?);
    let refused = fifth.check(about("")).await;
    let refused = refused.expect_err("the limit is four");
    let refused = RefusedCall::of(&refused);
    refused.assert_with_delay(Code::ResourceExhausted, "TOO_MANY_CONNECTIONS");
    let mut stranger = HealthClient::new(agent_channel(&instance).await?);
    stranger.check(about("")).await?;

    let (ended, _still_connected) = watches.remove(0);
    drop(ended);
    eventually("a slot is free", async || {
        let Ok(channel) = channel(instance.grpc, &agent).await else {
            return false;
        };
        HealthClient::new(channel).check(about("")).await.is_ok()
    })
    .await?;
    for (_watch, client) in &mut watches {
        client.check(about("")).await?;
    }
    instance.stop().await
}

/// The older connections look alive to the service, as those of a client whose path was reset do until their keepalive fails.
#[tokio::test]
async fn the_newest_connection_of_a_key_replaces_the_oldest_without_a_stream() -> Result<()> {
    let (_site, instance, agent) = Site::with_agent().await?;
    let tls = Tls::with(&agent.agent.identity);
    let mut oldest = OneConnection::open(&tls, instance.grpc).await?;
    assert_eq!(oldest.health_status().await?, "0");
    let (mut newest, mut replaced) = (agent.heartbeat().await?, Vec::new());
    for _ in 0..5 {
        let mut before = std::mem::replace(&mut newest, agent.heartbeat().await?);
        before.end().await?;
        replaced.push(before);
    }
    oldest.closed().await?;
    newest.report_acked(1..=3).await?;
    instance.stop().await
}

#[tokio::test]
async fn a_refused_connection_is_closed_soon_and_frees_its_slot() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .limits(|limits| {
            limits.connections_per_key = 1;
            limits.first_request_deadline = Duration::from_millis(200);
            limits.idle = PATIENCE * 100;
        })
        .start()
        .await?;
    let identity = Identity::self_signed("agent")?;
    let mut first = HealthClient::new(channel(instance.grpc, &identity).await?);
    let _watch = first.watch(about("")).await?;
    let mut second = OneConnection::open(&Tls::with(&identity), instance.grpc).await?;
    assert_eq!(second.health_status().await?, "8");
    second.closed().await?;
    first.check(about("")).await?;
    instance.stop().await
}
