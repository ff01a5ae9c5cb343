//! Registrations that are reset as soon as they are sent.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{faults::registrations_reset, raise_file_limit};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_thousand_keys_that_reset_registrations_cost_no_connection_and_delay_nobody() -> Result<()>
{
    raise_file_limit();
    let seen = registrations_reset(1000, Duration::from_secs(20)).await?;
    println!(
        "1000 keys, {} registrations reset after 1 ms; {} connections to PostgreSQL in all ({} allowed), \
         valid registrations {}",
        seen.resets, seen.connections, seen.allowed, seen.valid
    );
    ensure!(seen.resets >= 1000, "{seen:?}");
    ensure!(seen.connections <= seen.allowed, "{seen:?}");
    ensure!(seen.valid.max() < Duration::from_secs(1), "{seen:?}");
    Ok(())
}
