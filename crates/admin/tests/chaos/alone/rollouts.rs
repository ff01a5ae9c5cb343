//! The rollout of a release over a fleet that reports all the while, on two instances.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use svc_ingest::config::Timing;
use svc_release::{Binary, SecretKey, Update};
use svc_store::{Hours, Labels, NewRelease, NewRollout, stages};
use svc_testkit::{
    Fleet, Instance, Latencies, Pace, Site, metric, raise_file_limit, times_offline,
};

const AGENTS: u32 = 2000;
/// Agents that take offers too, on hosts that the rollout is not about.
const OUTSIDE: u32 = 100;
const PLATFORM: &str = "linux/x86_64";
/// Hosts of the first stage, and the share of the second one.
const CANARIES: usize = 5;
const PERCENT: usize = 10;
const PACE: Pace = Pace {
    every: Duration::from_secs(2),
    patience: Duration::from_secs(30),
    keepalive: Duration::from_secs(60),
    backoff: Duration::from_millis(200),
};
const LONGEST_ROLLOUT: Duration = Duration::from_mins(1);
const LONGEST_ABSENCE: Duration = Duration::from_secs(15);

const STATE: &str =
    "SELECT concat_ws(': ', state, nullif(reason, '')) FROM rollouts WHERE serial = 1";
const APPROVED: &str = "SELECT count(*) FROM agent_updates
    WHERE offered_serial = 1 AND serial = 1 AND step = 'approved' AND version = '1.1.0'";
const OFFERED: &str = "SELECT count(*) FROM agent_updates WHERE offered_serial IS NOT NULL";

/// A rollout takes days; here its waits do not count. An agent that is offline for a second counts against it.
fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
    timing.rollouts = Duration::from_millis(300);
    timing.fleet_gauges = Duration::from_millis(500);
    timing.dark_after = Duration::from_secs(1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn two_thousand_agents_update_in_stages_and_none_goes_offline() -> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let builder = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "5s");
    let instances = builder.timing(quick).start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let outside = Fleet::updating(&site, &addresses, AGENTS, OUTSIDE, PACE).await?;
    // The tokens of tests give hosts the label env=test. The hosts that register after this change keep it.
    site.psql(r#"SELECT label_hosts(array_agg(id), '{"env": "other"}', NULL, 'test') FROM hosts"#)
        .await?;
    let fleet = Fleet::updating(&site, &addresses, 0, AGENTS, PACE).await?;
    let known = "SELECT count(*) FROM agent_updates JOIN agent_state USING (agent_id) WHERE presence = 'online'";
    site.becomes(known, &(AGENTS + OUTSIDE).to_string()).await?;

    let began = Instant::now();
    start(&site).await?;
    svc_sandbox::eventually("the rollout is over", LONGEST_ROLLOUT, async || {
        let state = site.psql(STATE).await;
        state.is_ok_and(|state| state != "running")
    })
    .await?;
    let done = began.elapsed();
    site.expect(STATE, "done").await?;
    // The last stage ends when 95 % have approved.
    site.becomes(APPROVED, &AGENTS.to_string()).await?;
    let approved = began.elapsed();
    fleet.all_connected().await?;
    let absences = Latencies::of(fleet.absences());
    let reached = reached(&site).await?;
    println!(
        "{AGENTS} agents updated in stages of {CANARIES} hosts, {PERCENT} % ({} hosts) and 100 %: done after {done:.1?}, all \
         approved after {approved:.1?}; away for {absences}",
        reached[1]
    );

    fleet.all_acked_again().await?;
    outside.all_acked_again().await?;
    fleet.audit(&site).await?;
    outside.audit(&site).await?;
    ensure!(times_offline(&site).await? == 0, "agents were offline");
    left_once_for_the_update(&instances).await?;
    ensure!(fleet.streams().iter().all(|streams| *streams == 2));
    ensure!(outside.streams().iter().all(|streams| *streams == 1));
    ensure!(outside.offered() == 0, "{} were offered", outside.offered());
    site.expect(OFFERED, &AGENTS.to_string()).await?;
    // The share is one of hashes: six standard deviations of a fair draw are 80 hosts.
    let share = AGENTS as usize * PERCENT / 100;
    ensure!(
        reached[0] == CANARIES && reached[1].abs_diff(share) <= 80,
        "{reached:?}"
    );
    ensure!(absences.max() <= LONGEST_ABSENCE, "{absences}");
    Ok(())
}

/// Adds a release, and starts its rollout. The agents of a fleet verify no signature.
async fn start(site: &Site) -> Result<()> {
    let sha256 = "0f".repeat(32);
    let update = Update {
        product: "svc-agent".into(),
        version: "1.1.0".parse()?,
        serial: 1,
        minimum: None,
        notes: None,
        platforms: [(PLATFORM.to_owned(), Binary { size: 7, sha256 })].into(),
    };
    let manifest = update.to_text()?;
    let release = NewRelease {
        serial: 1,
        version: "1.1.0",
        platforms: &[PLATFORM],
        manifest: manifest.as_bytes(),
        signature: &SecretKey::generate()?.sign(manifest.as_bytes())?,
    };
    let selector: Labels = "env=test".parse()?;
    let stages = stages(&format!("{CANARIES},{PERCENT}%,100%"))?;
    let rollout = NewRollout {
        serial: 1,
        selector: &selector,
        stages: &stages,
        soak: Duration::from_secs(1),
        hours: Hours::default(),
        undoes: None,
    };
    let store = site.store()?;
    store.release_add(&release, "test").await?;
    store.rollout_start(&rollout, "test").await?;
    Ok(())
}

/// How many agents had been offered the release at the end of the first stage, and of the second one. The time of an offer is the
/// begin of its transaction, which may have waited for the one that advances; a stage soaks for longer than that.
async fn reached(site: &Site) -> Result<[usize; 2]> {
    let sql = "SELECT (SELECT count(*) FROM agent_updates u WHERE u.offered_at < e.at - interval '500 ms')
                 FROM rollout_events e WHERE e.kind = 'rollout advanced' ORDER BY e.id";
    let lines = site.psql(sql).await?;
    let counts: Vec<usize> = lines.lines().map(str::parse).collect::<Result<_, _>>()?;
    let [first, second] = counts[..] else {
        bail!("not two steps between three stages: {counts:?}");
    };
    Ok([first, second])
}

/// Every stream that has ended did so with a Goodbye that announced the return.
async fn left_once_for_the_update(instances: &[Instance; 2]) -> Result<()> {
    let (mut updating, mut all) = (0.0, 0.0);
    for instance in instances {
        updating += metric(instance.http, r#"streams_closed_total{cause="updating"}"#).await?;
        all += metric(instance.http, "streams_closed_total").await?;
    }
    let agents = f64::from(AGENTS);
    ensure!(
        (updating, all) == (agents, agents),
        "{updating} of {all} streams ended for the update"
    );
    Ok(())
}
