//! Ten minutes in which nothing happens: heartbeats come in, and presence is not written.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::time::sleep;

use crate::{
    fleet::{Fleet, Pace},
    harness::Site,
    scenes::start_process,
};

const AGENTS: u32 = 200;
const LENGTH: Duration = Duration::from_mins(10);

/// Everything that presence consists of, and the last event about it.
const PRESENCE: &str =
    "SELECT md5(string_agg(concat(agent_id, epoch, presence, cause, presence_since, connected_at, last_seen_at), ';'
                           ORDER BY agent_id)),
            (SELECT max(id) FROM agent_events) FROM agent_state";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn ten_minutes_of_a_steady_fleet_write_no_presence() -> Result<()> {
    let site = Site::new().await?;
    let instances = [
        start_process(&site, None).await?,
        start_process(&site, None).await?,
    ];
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::start(&site, &addresses, 0, AGENTS, Pace::default()).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let (before, acked) = (site.psql(PRESENCE).await?, acked(&fleet));
    sleep(LENGTH).await;
    let heartbeats = self::acked(&fleet) - acked;
    println!(
        "{AGENTS} agents for {LENGTH:?}: {heartbeats} heartbeats acknowledged, presence unchanged"
    );
    ensure!(site.psql(PRESENCE).await? == before, "presence was written");
    ensure!(
        heartbeats > u64::from(AGENTS) * LENGTH.as_secs() / 2,
        "the fleet was not steady"
    );
    fleet.audit(&site).await
}

fn acked(fleet: &Fleet) -> u64 {
    fleet.ledgers().iter().map(|ledger| ledger.acked).sum()
}
