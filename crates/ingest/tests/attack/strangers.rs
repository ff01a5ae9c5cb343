//! Messages that strangers begin and never complete.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_testkit::{
    AUTO, Site, Usage, documented_strangers,
    faults::{HalfSent, half_sent_by_strangers},
    raise_file_limit, token,
};

use crate::witness::Witness;

const STRANGERS: u64 = 1000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_thousand_strangers_take_the_documented_memory_and_delay_no_agent() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let secret = token(&site, AUTO.uses(10)).await?;
    for call in [HalfSent::REFLECTION, HalfSent::REGISTER, HalfSent::SMALL] {
        let process = site.process().start().await?;
        let witness = Witness::agent(process.grpc, secret.clone());
        let length = Duration::from_secs(20);
        let crowd = half_sent_by_strangers(&process, STRANGERS as usize, call, length);
        let (grown, cores) = Usage::cores(process.pid(), crowd).await?;
        let (grown, witness) = (grown?, witness.finish()?);
        let (mib, allowed) = (grown >> 20, documented_strangers(STRANGERS));
        println!("{call:?}: +{mib} MiB, {cores:.2} cores, agent {witness}");
        ensure!(grown < allowed, "{mib} MiB, {} documented", allowed >> 20);
        let slowest = witness.quantile(0.99);
        ensure!(
            slowest < Duration::from_secs(1),
            "an agent's p99 was {slowest:?}"
        );
    }
    Ok(())
}
