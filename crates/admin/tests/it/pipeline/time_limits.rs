//! Batches that take longer than a statement may.

use anyhow::{Result, ensure};
use svc_pipeline::queue::Parcel;
use svc_testkit::{ActiveAgent, metric, range, sample, seed};

use super::{queue, without_consumer};
use crate::queue::ORIGIN;

/// Delays the storing of samples that use so many bytes of memory.
fn delay(seconds: f64, memory: &str) -> String {
    format!(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON samples_open FOR EACH ROW WHEN (NEW.memory_used_bytes {memory}) EXECUTE FUNCTION slow()"
    )
}

/// Together they take 6.4 s, and a statement may take 5 s.
#[tokio::test]
async fn a_batch_that_exceeds_its_time_limit_is_stored_in_parts() -> Result<()> {
    const REPORTS: usize = 80;
    let (site, _server) = without_consumer().await?;
    site.psql(&delay(0.08, "= 1")).await?;
    let queue = queue(&site).await?;
    let agents = seed(&site, 3 * REPORTS).await?;
    let of_one_shard = agents
        .iter()
        .filter(|(agent, _)| agent.0.as_u128() % 2 == 0);
    for agent in of_one_shard.take(REPORTS) {
        let range = range(*agent, 1, 1);
        let origin = ORIGIN;
        queue.push(Parcel { range, origin }).await;
    }
    let consumer = site.consumer_process().start().await?;
    let stored = "SELECT sum(stored_count), sum(gap_count) FROM agent_state";
    site.becomes(stored, "80|0").await?;
    let parts = metric(consumer.http, "commit_seconds_count").await?;
    ensure!(parts >= 2.0, "{parts} parts");
    site.expect("SELECT count(*) FROM host_metrics", "80").await
}

#[tokio::test]
async fn a_report_that_takes_too_long_withholds_no_other_acknowledgement() -> Result<()> {
    let (site, server) = without_consumer().await?;
    site.psql(&delay(6.0, "= 13")).await?;
    let (mut agents, mut calls) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let agent = ActiveAgent::new(&site, server.grpc, number).await?;
        calls.push(agent.heartbeat().await?);
        agents.push(agent);
    }
    let mut slow = calls.swap_remove(0);
    let mut slow_sample = sample(1);
    let vitals = slow_sample.vitals.get_or_insert_default();
    vitals.memory_used_bytes = 13;
    slow.report(vec![slow_sample], vec![]).await?;
    for call in &calls {
        call.report(vec![sample(1)], vec![]).await?;
    }
    let consumer = site.consumer_process().start().await?;
    for call in &mut calls {
        call.acked_up_to(1).await?;
    }
    for call in &calls {
        call.report(vec![sample(2)], vec![]).await?;
    }
    for call in &mut calls {
        call.acked_up_to(2).await?;
    }
    let books = "SELECT string_agg(concat_ws(' ', acked_seq, stored_count, gap_count), ', ' ORDER BY acked_seq) FROM agent_state";
    site.expect(books, "0 0 0, 2 2 0, 2 2 0, 2 2 0").await?;
    site.psql("DROP TRIGGER slow ON samples_open").await?;
    slow.acked_up_to(1).await?;
    site.expect(books, "1 1 0, 2 2 0, 2 2 0, 2 2 0").await?;
    ensure!(metric(consumer.http, "dead_letters_total").await? == 0.0);
    Ok(())
}
