//! How long an approval takes to reach the pending registration.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use svc_proto::v1::AgentStatus;
use svc_testkit::{
    FakeAgent, Latencies, MANUAL, ServiceBuilder, ServiceProcess, Site, is_active, machine,
    raise_file_limit, token,
};
use tokio::task::JoinSet;

const AGENTS: u32 = 200;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn approvals_arrive_within_a_second() -> Result<()> {
    let latencies = approvals(|builder| builder).await?;
    println!("approval to JWT, by notification: {latencies}");
    ensure!(latencies.quantile(0.99) < Duration::from_secs(1));
    ensure!(latencies.max() < Duration::from_secs(10));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn approvals_arrive_within_ten_seconds_without_notifications() -> Result<()> {
    let latencies = approvals(ServiceBuilder::without_notifications).await?;
    println!("approval to JWT, by the poll alone: {latencies}");
    ensure!(
        latencies.quantile(0.5) > Duration::from_millis(200),
        "notifications were not cut off"
    );
    ensure!(latencies.max() < Duration::from_secs(10));
    Ok(())
}

/// Agents wait on two instances and are approved one by one, half of them by a plain UPDATE. The
/// time starts before the statement is sent, so it includes the commit.
async fn approvals(set: fn(ServiceBuilder) -> ServiceBuilder) -> Result<Latencies> {
    raise_file_limit();
    let site = Site::new().await?;
    let builder = set(site.process().set("INGEST_MAX_CONNECTIONS", "4000"));
    let instances = builder.start_pair().await?;
    let (agents, waiting) = wait_all(&site, &instances).await?;
    let mut sent = Vec::new();
    for (number, agent) in agents.iter().enumerate() {
        sent.push(Instant::now());
        let approval = match number / 2 % 2 {
            0 => format!("SELECT approve_agent('{agent}', 'chaos')"),
            _ => format!("UPDATE agents SET status = 'active' WHERE id = '{agent}'"),
        };
        site.psql(&approval).await?;
    }
    let mut latencies = Vec::new();
    for arrived in waiting.join_all().await {
        let (number, at) = arrived?;
        latencies.push(at - sent[number]);
    }
    Ok(Latencies::of(latencies))
}

/// The number of each registration, and when its JWT arrived.
type WaitingCalls = JoinSet<Result<(usize, Instant)>>;

async fn wait_all(
    site: &Site,
    instances: &[ServiceProcess; 2],
) -> Result<(Vec<String>, WaitingCalls)> {
    let secret = token(site, MANUAL).await?;
    let (mut agents, mut waiting) = (Vec::new(), WaitingCalls::new());
    for number in 0..AGENTS {
        let agent = FakeAgent::on(machine(number))?;
        let address = instances[number as usize % 2].grpc;
        let mut stream = agent.open(address, &secret).await??;
        let first = stream.answer().await?;
        ensure!(first.status() == AgentStatus::Pending);
        agents.push(first.agent_id);
        waiting.spawn(async move {
            ensure!(is_active(&stream.answer().await?));
            Ok((number as usize, Instant::now()))
        });
    }
    Ok((agents, waiting))
}
