//! Reports that the database refuses: dead letters, and what happens while they cannot be recorded.

use anyhow::{Context, Result, ensure};
use svc_testkit::{Fleet, Pace, QueueKind, Site, eventually, metric, metric_becomes, sample};

const DEAD_LETTERS: &str = "SVC_INGEST_DEAD_LETTERS";
/// The thirteenth sample of every agent, because `sample` uses as many bytes of memory as its number.
const POISON: &str =
    "ALTER TABLE samples_open ADD CONSTRAINT unlucky CHECK (memory_used_bytes <> 13)";

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_that_the_database_refuses_becomes_a_dead_letter_and_a_gap() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        site.psql(POISON).await?;
        let instance = site.instance().start().await?;
        let fleet = Fleet::start(&site, &[instance.grpc], 0, 8, Pace::BRISK).await?;
        eventually("all are past the thirteenth", async || {
            fleet.balances().iter().all(|agent| agent.acked > 13)
        })
        .await?;
        fleet.settle().await?;
        let books = "SELECT count(*), sum(gap_count), sum(stored_count) = (SELECT count(*) FROM host_metrics),
                            bool_and(stored_count + gap_count = acked_seq AND gap_count > 0) FROM agent_state";
        let gaps = "SELECT sum(last_seq - first_seq + 1), bool_and(kind = 'dead letter' AND first_seq <= 13 AND last_seq >= 13),
                           bool_and(reason LIKE '23514: %') FROM metric_gaps";
        let (books, gaps) = (site.psql(books).await?, site.psql(gaps).await?);
        let lost = gaps.split('|').next().context("a sum")?;
        assert_eq!(books, format!("8|{lost}|t|t"), "{kind:?}");
        assert_eq!(gaps, format!("{lost}|t|t"), "{kind:?}");
        ensure!(metric(instance.http, "dead_letters_total").await? == 8.0);
        eventually("the agents get the rejections", async || {
            let balances = fleet.balances();
            let rejected: u64 = balances.iter().map(|agent| agent.rejected).sum();
            rejected.to_string() == lost
        })
        .await?;
        match kind {
            QueueKind::Memory => Ok(()),
            QueueKind::Nats => dead_letters_are_readable(&site).await,
        }
    })
    .await
}

async fn dead_letters_are_readable(site: &Site) -> Result<()> {
    use prost::Message;
    let context = async_nats::jetstream::new(async_nats::connect(site.queue_url()).await?);
    let stream = context.get_stream(DEAD_LETTERS).await?;
    assert_eq!(stream.cached_info().state.messages, 8);
    let letter = stream.get_raw_message(1).await?;
    let range = svc_proto::queue::v1::Range::decode(letter.payload)?;
    assert!(range.samples.iter().any(|sample| sample.seq == 13));
    let reason = letter
        .headers
        .get("Svc-Ingest-Reason")
        .context("a reason")?;
    assert!(reason.as_str().starts_with("23514: "), "{reason}");
    Ok(())
}

/// A report that is refused and cannot be recorded has no watermark. It must not count as stored: it stays in the queue,
/// and its stream stays open.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_cannot_be_recorded_is_put_back_until_it_can() -> Result<()> {
    let site = Site::new().await?.with_queue(QueueKind::Nats).await?;
    site.psql(POISON).await?;
    let (instance, agent) = site.instance().with_agent(&site).await?;
    let mut call = agent.heartbeat().await?;
    call.report_acked(1..=12).await?;
    let context = async_nats::jetstream::new(async_nats::connect(site.queue_url()).await?);
    let settings = context.get_stream(DEAD_LETTERS).await?;
    let settings = settings.cached_info().config.clone();
    context.delete_stream(DEAD_LETTERS).await?;

    call.report(vec![sample(13), sample(14)], vec![]).await?;
    metric_becomes(instance.http, "queue_put_back_total", |n| n >= 2.0).await?;
    ensure!(
        metric(instance.http, "queue_ranges").await? >= 1.0,
        "the report is gone"
    );
    ensure!(metric(instance.http, "dead_letters_total").await? == 0.0);
    site.expect("SELECT acked_seq, gap_count FROM agent_state", "12|0")
        .await?;

    context.create_stream(settings).await?;
    let ack = call.next_ack().await?;
    let rejected: Vec<u64> = ack.rejected.iter().map(|rejection| rejection.seq).collect();
    assert_eq!((ack.up_to_seq, rejected), (14, vec![13, 14]));
    site.expect("SELECT acked_seq, gap_count FROM agent_state", "14|2")
        .await?;
    call.report_acked(15..=15).await
}

/// A trigger's message has line breaks and a megabyte. Neither may reach a header, the log or the books as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_with_line_breaks_and_without_end_becomes_one_short_line() -> Result<()> {
    QueueKind::each(async |kind| {
        let site = Site::new().await?.with_queue(kind).await?;
        let trigger = r"CREATE FUNCTION unlucky() RETURNS trigger LANGUAGE plpgsql AS
              $$ BEGIN RAISE EXCEPTION '%', E'un\r\nlucky' || repeat('ü', 500000) USING ERRCODE = '23514'; END $$;
            CREATE TRIGGER unlucky BEFORE INSERT ON samples_open FOR EACH ROW
              WHEN (NEW.memory_used_bytes = 13) EXECUTE FUNCTION unlucky()";
        site.psql(trigger).await?;
        let (_instance, agent) = site.instance().with_agent(&site).await?;
        let mut call = agent.heartbeat().await?;
        call.report_acked(1..=12).await?;
        call.report(vec![sample(13)], vec![]).await?;
        let ack = call.next_ack().await?;
        assert_eq!((ack.up_to_seq, ack.rejected.len()), (13, 1), "{kind:?}");
        let reason = r"SELECT reason LIKE '23514: un  lucky%' AND octet_length(reason) < 520 FROM metric_gaps";
        site.expect(reason, "t").await?;
        call.report_acked(14..=14).await
    })
    .await
}
