//! Messages that strangers begin and never complete.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{
    AUTO, Site, Usage, documented_strangers,
    faults::{HalfSent, half_sent_by_strangers},
    metric, raise_file_limit, token,
};

use crate::witness::Witness;

const STRANGERS: u64 = 1000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_thousand_strangers_take_the_documented_memory_and_delay_no_agent() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let secret = token(&site, AUTO.uses(10)).await?;
    let mut faults = Vec::new();
    for call in [
        HalfSent::REFLECTION,
        HalfSent::HEALTH,
        HalfSent::UNKNOWN,
        HalfSent::REGISTER,
        HalfSent::SMALL,
    ] {
        let process = site.process().start().await?;
        let witness = Witness::agent(process.grpc, secret.clone());
        let length = Duration::from_secs(20);
        let crowd = half_sent_by_strangers(&process, STRANGERS as usize, call, length);
        let (grown, cores) = Usage::cores(process.pid(), crowd).await?;
        let (grown, open) = (grown?, metric(process.http, "connections_unproven").await?);
        println!(
            "{call:?}: {open} strangers at the end, +{} MiB, {cores:.2} cores",
            grown >> 20
        );
        if grown > documented_strangers(STRANGERS) {
            faults.push(format!("{call:?}: more memory than documented"));
        }
        let agent = witness.finish()?;
        println!("agent {agent}");
        if agent.quantile(0.99) >= Duration::from_secs(1) {
            faults.push(format!("{call:?}: an agent's p99 of 1 s and more"));
        }
    }
    ensure!(faults.is_empty(), "{faults:#?}");
    Ok(())
}
