//! How fast one agent may write.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use svc_proto::v1::Sample;
use svc_testkit::{Site, sample, wire_time};

/// 7 days at an interval of 30 s.
const WEEK: u64 = 20_160;
const REPORT: u64 = 500;

/// A hostile agent writes no faster than this, so the time has a lower bound too.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn a_week_of_samples_drains_within_minutes_and_no_faster_than_the_limit() -> Result<()> {
    let (site, _instance, agent) = Site::with_agent().await?;
    let began = Instant::now();
    let mut call = agent.heartbeat().await?;
    let mut first = 1;
    while first <= WEEK {
        let last = (first + REPORT - 1).min(WEEK);
        let samples = (first..=last).map(of_week).collect();
        call.report(samples, vec![]).await?;
        call.acked_up_to(last).await?;
        first = last + 1;
        if first % (10 * REPORT) == 1 {
            call = agent.heartbeat().await?; // A new stream gives no new burst.
        }
    }
    let took = began.elapsed();
    println!("{WEEK} samples of one agent were acknowledged after {took:.1?}");
    ensure!(took > Duration::from_mins(1), "faster than the limit");
    ensure!(took < Duration::from_mins(3));
    let stored = format!("SELECT stored_count = {WEEK} FROM agent_state");
    site.expect(&stored, "t").await
}

fn of_week(seq: u64) -> Sample {
    let seconds_ago = 30 * (WEEK - seq).cast_signed();
    Sample {
        sampled_at: Some(wire_time(
            Timestamp::now() - SignedDuration::from_secs(seconds_ago),
        )),
        ..sample(seq)
    }
}
