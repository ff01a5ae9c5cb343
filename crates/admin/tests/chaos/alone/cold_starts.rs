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

#[tokio::test]
#[ignore = "strict: run by make chaos"]
async fn three_first_starts_with_a_web_role_serve_in_every_round() -> Result<()> {
    let latencies = Latencies::of(faults::first_starts_with_web_role(12).await?);
    println!("3 first starts with a web role to all serving: {latencies}, in each of 12 rounds");
    Ok(())
}
