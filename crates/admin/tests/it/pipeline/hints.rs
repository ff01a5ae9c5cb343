//! Commit hints over NATS: they wake the instance, and the database decides.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use prost::Message;
use svc_ingest::config::Timing;
use svc_proto::queue::v1::{Committed, DeadLetter, Watermark};
use svc_testkit::{Fleet, Pace, QueueKind, Site, sample, transaction_count};
use tokio::time::timeout;

use super::agent_without_consumer;

/// Anybody who may publish on the subject. The ids of instances are no secret.
struct Forger {
    client: async_nats::Client,
    subject: String,
}

impl Forger {
    async fn at(site: &Site) -> Result<Self> {
        let instance = site.psql("SELECT id FROM ingest_instances").await?;
        Ok(Self {
            client: async_nats::connect(site.queue_url()).await?,
            subject: format!("svc.ingest.acked.{instance}"),
        })
    }

    async fn claim(&self, agent_id: &str, acked_seq: u64, refused: &[u64]) -> Result<()> {
        let hint = Committed {
            watermarks: vec![Watermark {
                agent_id: agent_id.to_owned(),
                acked_seq,
            }],
            dead_letters: vec![DeadLetter {
                agent_id: agent_id.to_owned(),
                seqs: refused.to_vec(),
            }],
        };
        let subject = self.subject.clone();
        self.client
            .publish(subject, hint.encode_to_vec().into())
            .await?;
        Ok(self.client.flush().await?)
    }
}

#[tokio::test]
async fn a_forged_hint_acknowledges_nothing_and_rejects_nothing() -> Result<()> {
    let (site, _server, agent, mut call) = agent_without_consumer().await?;
    call.report(vec![sample(1), sample(2)], vec![]).await?;
    let forger = Forger::at(&site).await?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        for acked in [1, 2, 3, i64::MAX.cast_unsigned()] {
            forger.claim(&agent.id, acked, &[1, 2]).await?;
        }
        let answer = timeout(Duration::from_millis(100), call.receive()).await;
        ensure!(answer.is_err(), "the agent received {answer:?}");
    }
    let _consumer = site.consumer_process().start().await?;
    let ack = call.next_ack().await?;
    assert_eq!((ack.up_to_seq, ack.rejected), (2, vec![]));
    forger.claim(&agent.id, 1000, &[1, 2]).await?;
    call.report(vec![sample(3)], vec![]).await?;
    let ack = call.next_ack().await?;
    assert_eq!((ack.up_to_seq, ack.rejected), (3, vec![]));
    Ok(())
}

/// Without the backstop only hints lead to acknowledgements.
fn no_backstop(timing: &mut Timing) {
    timing.ack_backstop = Duration::from_hours(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_of_many_agents_are_confirmed_with_few_statements() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    let builder = site.instance().set("INGEST_CONSUME", "false");
    let server = builder.timing(no_backstop).start().await?;
    let _consumers = site.consumer_process().start_pair().await?;
    let fleet = Fleet::reporting(&site, &[server.grpc], 50, Pace::BRISK).await?;
    let asked = async || transaction_count(server.http, "watermarks").await;
    let (before, acked, began) = (asked().await?, fleet.acked(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (statements, took) = (asked().await? - before, began.elapsed().as_secs_f64());
    let acknowledged = fleet.acked() - acked;
    ensure!(statements > 0 && acknowledged > 0, "no hint was confirmed");
    ensure!(
        statements as f64 <= 4.0 * took + 2.0,
        "{statements} statements in {took:.1} s for {acknowledged} samples"
    );
    fleet.audit(&site).await
}
