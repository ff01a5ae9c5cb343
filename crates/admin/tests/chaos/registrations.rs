//! Registrations wait for a permit and then find a connection.

use anyhow::{Result, ensure};
use svc_testkit::faults::registrations_behind_a_lock;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn many_registrations_wait_for_a_permit_and_none_fails_for_a_connection() -> Result<()> {
    let seen = registrations_behind_a_lock().await?;
    println!("{} registrations were sent away once", seen.refused.len());
    ensure!(seen.failed.is_none(), "{seen:?}");
    for refused in &seen.refused {
        ensure!(refused.reason == "RATE_LIMITED", "{refused:?}");
    }
    Ok(())
}
