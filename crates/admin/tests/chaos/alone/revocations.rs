//! Revocation against issuance: no JWT is issued once a revocation has committed.
//!
//! There are two races. In the first the order is certain: the revocation commits only once the
//! database shows that the registration waits for its row lock, in a transaction that has found the
//! agent active. In the second, both start together. A JWT that arrives after the revocation has
//! returned was issued before, so it may be late only by the time of its delivery.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_proto::v1::{AgentStatus, RegisterResponse, ingest_service_client::IngestServiceClient};
use svc_testkit::{AUTO, ActiveAgent, Latencies, ServiceProcess, Site, is_active, token};
use tonic::transport::Channel;

const CERTAIN: u32 = 200;
const FREE: u32 = 1000;
/// The time from the last check of the status to the client: TLS, HTTP/2 and scheduling.
const ON_THE_WAY: Duration = Duration::from_millis(250);

/// An active agent, on one of two instances.
struct Active {
    agent: ActiveAgent,
    client: IngestServiceClient<Channel>,
}

impl Active {
    async fn new(number: u32, instances: &[ServiceProcess; 2], secret: &str) -> Result<Self> {
        let address = instances[number as usize % 2].grpc;
        let agent = ActiveAgent::with_token(address, number, secret).await?;
        let client = agent.agent.connect(address).await?;
        Ok(Self { agent, client })
    }

    /// Asks for a JWT with the known key.
    async fn renew(&mut self) -> Result<RegisterResponse> {
        let request = self.agent.agent.request("");
        let mut stream = self.client.register(request).await?.into_inner();
        stream.message().await?.context("an answer")
    }

    /// Asks again, after the revocation.
    async fn is_refused(&mut self) -> Result<()> {
        let after = self.renew().await?;
        ensure!(!is_active(&after) && after.status() == AgentStatus::Revoked);
        Ok(())
    }
}

async fn site() -> Result<(Site, [ServiceProcess; 2], String)> {
    let site = Site::new().await?;
    let builder = site.process().set("INGEST_LOG", "warn");
    let instances = builder.start_pair().await?;
    let secret = token(&site, AUTO.uses(10_000)).await?;
    Ok((site, instances, secret))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_registration_in_progress_when_the_revocation_commits_gets_no_jwt() -> Result<()> {
    let (site, instances, secret) = site().await?;
    for number in 0..CERTAIN {
        let mut active = Active::new(number, &instances, &secret).await?;
        let revocation = revocation_once_waited_for(&active.agent.id);
        let call = async {
            site.sleeps().await?;
            active.renew().await
        };
        let (revoked, answer) = tokio::join!(site.psql(&revocation), call);
        ensure!(revoked?.ends_with("waited for"), "the call never waited");
        let answer = answer?;
        ensure!(
            !is_active(&answer) && answer.status() == AgentStatus::Revoked,
            "round {number}: {:?}",
            answer.status()
        );
        active.is_refused().await?;
    }
    println!("revocation committed in mid-call: 0 JWTs in {CERTAIN} rounds");
    Ok(())
}

/// Revokes, and commits once another session waits for the row.
fn revocation_once_waited_for(agent: &str) -> String {
    format!(
        "BEGIN;
         SELECT revoke_agent('{agent}', 'chaos');
         DO $$ BEGIN
             FOR n IN 1..400 LOOP
                 PERFORM pg_stat_clear_snapshot();
                 EXIT WHEN EXISTS (SELECT FROM pg_stat_activity
                                    WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)));
                 PERFORM pg_sleep(0.005);
             END LOOP;
         END $$;
         SELECT CASE WHEN EXISTS (SELECT FROM pg_stat_activity
                                   WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))
                     THEN 'waited for' ELSE 'alone' END;
         COMMIT"
    )
}

/// Which of two that start late comes first is a matter of chance, even if one of them takes longer.
async fn start_late() {
    let delay = Duration::from_micros(rand::random_range(0..30_000));
    tokio::time::sleep(delay).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_free_race_issues_no_jwt_after_the_revocation() -> Result<()> {
    let (site, instances, secret) = site().await?;
    let (mut won, mut late) = (0, Vec::new());
    for number in 0..FREE {
        let mut active = Active::new(number, &instances, &secret).await?;
        let sql = format!("SELECT revoke_agent('{}', 'chaos')", active.agent.id);
        let revocation = async {
            start_late().await;
            let revoked = site.psql(&sql).await;
            (revoked, Instant::now())
        };
        let call = async {
            start_late().await;
            let answer = active.renew().await;
            (answer, Instant::now())
        };
        let ((revoked, committed), (answer, arrived)) = tokio::join!(revocation, call);
        revoked?;
        if is_active(&answer?) {
            won += 1;
            late.extend(arrived.checked_duration_since(committed));
        }
        active.is_refused().await?;
    }
    let count = late.len();
    let late = Latencies::of(late);
    println!(
        "free race: {won} of {FREE} had their JWT, {count} after the revocation returned, late by {late}"
    );
    ensure!(won > 0 && won < FREE, "no call raced");
    ensure!(late.max() < ON_THE_WAY);
    Ok(())
}
