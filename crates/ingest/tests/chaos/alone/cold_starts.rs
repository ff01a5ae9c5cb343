//! Services that start at once without a key and without a schema.

use anyhow::Result;
use svc_testkit::{Latencies, faults};

const ROUNDS: usize = 20;

#[tokio::test]
#[ignore = "strict: run by make chaos"]
async fn concurrent_services_on_an_empty_path_share_one_key_in_every_round() -> Result<()> {
    let latencies = Latencies::of(faults::cold_starts(ROUNDS).await?);
    println!("8 cold starts to all serving: {latencies}, one key in each round");
    Ok(())
}
