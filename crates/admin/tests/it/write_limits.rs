//! What one agent may write, however often it reconnects.

use std::time::Instant;

use anyhow::{Result, ensure};
use svc_proto::contract::limits::{REPORT_BURST, REPORT_INTERVAL};
use svc_testkit::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_stream_gives_an_agent_no_new_burst() -> Result<()> {
    let (_site, _instance, agent) = Site::with_agent().await?;
    let (began, mut next) = (Instant::now(), 1);
    let streams = 3;
    for _ in 0..streams {
        let mut call = agent.heartbeat().await?;
        for _ in 0..REPORT_BURST / 2 {
            call.report_acked(next..=next).await?;
            next += 1;
        }
        call.goodbye().await?;
    }
    // Ten reports and a Goodbye on each stream.
    let messages = streams * (REPORT_BURST / 2 + 1);
    let least = REPORT_INTERVAL * (messages - REPORT_BURST - 2);
    ensure!(began.elapsed() >= least, "{:?}", began.elapsed());
    Ok(())
}
