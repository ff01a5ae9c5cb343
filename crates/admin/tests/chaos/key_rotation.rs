//! The rotation of the signing key under a large fleet, with a third party that keeps its keys for five minutes.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_ingest::signing::JWKS_MAX_AGE;
use svc_testkit::{Pace, Site, faults, raise_file_limit};

const AGENTS: u32 = 1000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn the_key_is_rotated_under_a_thousand_agents() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let pace = Pace {
        every: Duration::from_secs(5),
        patience: Duration::from_secs(30),
        keepalive: Duration::from_secs(60),
        ..Pace::STEADY
    };
    let seen = faults::key_rotated(&site, AGENTS, JWKS_MAX_AGE, pace).await?;
    println!(
        "the key rotated under {AGENTS} agents: {} JWTs verified by a third party, 0 refused, 0 offline; \
         all renewed {:.1?} after all were back from the last restart",
        seen.verified, seen.renewed_after
    );
    ensure!(seen.renewed_after <= Duration::from_secs(30));
    Ok(())
}
