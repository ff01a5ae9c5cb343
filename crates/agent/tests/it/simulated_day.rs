//! A simulated day in 20 seconds: outages, restarts, crashes, drains, clock steps and a
//! full spool, against the real service. At the end every number is accounted for, losses are
//! declared, and all times are within the day.

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_agent::clock::Clock;
use svc_testkit::{AUTO, Instance, PATIENCE, Proxy, Site, token};
use tokio::time::sleep;

use crate::installation::{Installed, PRESENCE, Running, away, books_balance};

/// The real length of the day.
const LENGTH: Duration = Duration::from_secs(20);
const RATE: u32 = 4320;
const HOUR: Duration = Duration::from_millis(833);

#[tokio::test]
async fn a_day_of_outages_ends_with_balanced_books() -> Result<()> {
    let site = Site::new().await?;
    let mut instances = [instance(&site).await?, instance(&site).await?];
    let proxy = Proxy::start(instances.iter().map(|instance| instance.grpc).collect()).await?;
    let secret = token(&site, AUTO).await?;
    let clock = Clock::faster(RATE, LENGTH);
    let mut installed = Installed::new(&site, 1, &[proxy.address()], &secret)?;
    installed.surroundings.clock = clock.clone();
    installed.settings = vec![("spool_size", "1MiB".into())];

    // The agent registers and reports.
    let mut agent = installed.start()?;
    site.becomes("SELECT acked_seq > 10 FROM agent_state", "t")
        .await?;
    sleep(2 * HOUR).await;
    // The wall clock is set wrong, twice.
    clock.move_wall(6 * 3_600_000);
    sleep(HOUR).await;
    clock.move_wall(-30 * 3_600_000);
    // The network fails for three hours; the agent is restarted, then crashes.
    away(&proxy, true)?;
    sleep(HOUR).await;
    agent = restarted(agent, &installed).await?;
    sleep(HOUR).await;
    agent.kill().await?;
    agent = installed.start()?;
    sleep(HOUR).await;
    away(&proxy, false)?;
    site.becomes(PRESENCE, "online").await?;
    // Both instances are replaced, one after the other.
    for number in 0..2 {
        let fresh = instance(&site).await?;
        let old = std::mem::replace(&mut instances[number], fresh);
        proxy.set_targets(instances.iter().map(|instance| instance.grpc).collect());
        old.stop().await?;
        sleep(HOUR).await;
    }
    // The network fails again, and so many samples are taken that the spool is full.
    site.becomes(PRESENCE, "online").await?;
    away(&proxy, true)?;
    while agent.recorder.usage().given_up < 1_500 {
        for _ in 0..50 {
            agent.recorder.take().await;
        }
        agent.recorder.flush(); // Faster than the disk, the samples would fill the memory.
    }
    sleep(HOUR).await;
    away(&proxy, false)?;

    let (next, _) = agent.recorder.numbers();
    let everything = format!("SELECT acked_seq >= {} FROM agent_state", next - 1);
    svc_sandbox::eventually("everything has arrived", 4 * PATIENCE, async || {
        site.psql(&everything)
            .await
            .is_ok_and(|arrived| arrived == "t")
    })
    .await?;
    agent.stop().await?;
    accounted_for(&site, next).await
}

async fn instance(site: &Site) -> Result<Instance> {
    site.instance()
        .set("INGEST_HEARTBEAT_INTERVAL", "30s")
        .start()
        .await
}

async fn restarted(agent: Running, installed: &Installed) -> Result<Running> {
    agent.stop().await?;
    installed.start()
}

async fn accounted_for(site: &Site, next: u64) -> Result<()> {
    books_balance(site).await?;
    let losses = site
        .psql("SELECT string_agg(DISTINCT reason, ', ' ORDER BY reason) FROM metric_gaps")
        .await?;
    ensure!(losses == "spool full", "given up for {losses}");
    let books = site
        .psql("SELECT stored_count > 1000, rejected_count, gap_count > 1000 FROM agent_state")
        .await?;
    ensure!(books == "t|0|t", "{books}");
    let undeclared = site
        .psql("SELECT count(*) FROM metric_gaps WHERE kind <> 'declared'")
        .await?;
    ensure!(
        undeclared == "0",
        "{undeclared} gaps of {next} numbers were not declared"
    );
    let in_the_day = "SELECT bool_and(sampled_at BETWEEN now() - interval '25 hours' AND now() + interval '5 min')
                        FROM host_metrics";
    site.becomes(in_the_day, "t").await?;
    // Sample times never go back, although the wall clock does.
    let backwards =
        "SELECT count(*) FROM (SELECT sampled_at - lag(sampled_at) OVER (ORDER BY seq) AS step
                       FROM host_metrics) steps WHERE step < interval '-5 min'";
    let backwards = site.psql(backwards).await?;
    ensure!(backwards == "0", "{backwards} steps back");
    Ok(())
}
