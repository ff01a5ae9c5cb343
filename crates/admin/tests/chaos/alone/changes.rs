//! A rule of settings and a request for new keys that reach a whole fleet while it reports, on two instances with the times of
//! production.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use svc_testkit::{
    Fleet, KeyCounts, Pace, ServiceProcess, Site, raise_file_limit, times_offline, transactions,
};
use tokio::time::sleep;

const AGENTS: u32 = 10_000;
const PACE: Pace = Pace {
    every: Duration::from_secs(10),
    patience: Duration::from_secs(30),
    keepalive: Duration::from_mins(1),
    backoff: Duration::from_millis(200),
};
const SETTINGS_WITHIN: Duration = Duration::from_secs(10);
const KEYS_WITHIN: Duration = Duration::from_mins(1);
/// Longer than either, so that a slow machine shows by how much.
const PATIENCE: Duration = Duration::from_mins(3);
/// How long statements are counted: several reports of each agent.
const COUNTED: Duration = Duration::from_secs(30);
/// Statements of batches depend on how reports fall into them.
const MOST_STATEMENTS: f64 = 1.25;

const RULE: [&str; 6] = [
    "settings",
    "add",
    "--selector",
    "env=test",
    "--ignore-mount",
    "/mnt/*",
];
const NEW_KEYS: [&str; 4] = ["agent", "change-key", "--selector", "env=test"];

const RUN: &str = "SELECT count(*) FROM agent_settings WHERE running_hash <> '' AND refused = '[]'";
const RUN_WHAT_THEY_ARE_TO: &str =
    "SELECT count(*) FROM settings_effective(ARRAY (SELECT id FROM agents)) e
    JOIN agent_settings s USING (agent_id) WHERE e.settings <> '{}' AND s.running_hash = e.hash";
const CHANGED: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed'";
const WAITING: &str = "SELECT count(*) FROM agents WHERE key_change_at IS NOT NULL";
const KEYS: &str = "SELECT id, encode(key, 'hex') FROM agents ORDER BY id";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn ten_thousand_agents_run_new_settings_within_10_s_and_use_new_keys_within_a_minute()
-> Result<()> {
    raise_file_limit();
    let site = Site::new().await?;
    let service = site
        .server_process()
        .set("INGEST_HEARTBEAT_INTERVAL", "30s");
    let instances: [ServiceProcess; 2] = service.start_pair().await?;
    let grpc = instances.each_ref().map(|instance| instance.grpc);
    let http = instances.each_ref().map(|instance| instance.http);
    let fleet = Fleet::changing(&site, &grpc, AGENTS, PACE).await?;
    fleet.all_acked_again().await?;
    let before_keys = site.psql(KEYS).await?;
    let before = statements(&fleet, &http).await?;

    let settings = takes(&fleet, &site, &RULE, RUN).await?;
    site.expect(RUN_WHAT_THEY_ARE_TO, &AGENTS.to_string())
        .await?;
    let with_settings = statements(&fleet, &http).await?;

    let keys = takes(&fleet, &site, &NEW_KEYS, CHANGED).await?;
    fleet.keys_settle().await?;
    let with_keys = statements(&fleet, &http).await?;
    println!(
        "{AGENTS} agents run new settings {settings:.1?} after the command, and use new keys after {keys:.1?}; statements for 1,000 \
         heartbeats: {before:.1} before, {with_settings:.1} and {with_keys:.1} afterwards"
    );

    site.expect(CHANGED, &AGENTS.to_string()).await?;
    site.expect(WAITING, "0").await?;
    let present = site.psql(KEYS).await?;
    ensure!(present.lines().eq(fleet.present_keys()?), "other keys");
    let same = |(old, new): &(&str, &str)| old == new;
    let unchanged = before_keys.lines().zip(present.lines()).filter(same);
    ensure!(unchanged.count() == 0, "some have their old keys");
    let counts: KeyCounts = fleet.key_counts().into_iter().sum();
    ensure!(counts.changed == u64::from(AGENTS), "{counts:?}");
    ensure!(
        counts.interrupted + counts.second_handshakes + counts.refused == 0,
        "{counts:?}"
    );
    ensure!(fleet.absences().is_empty(), "streams were lost");
    ensure!(fleet.streams().iter().all(|streams| *streams == 2));
    fleet.all_acked_again().await?;
    fleet.audit(&site).await?;
    ensure!(times_offline(&site).await? == 0, "agents were offline");
    ensure!(settings <= SETTINGS_WITHIN, "settings took {settings:?}");
    ensure!(keys <= KEYS_WITHIN, "keys took {keys:?}");
    let most = before * MOST_STATEMENTS;
    ensure!(with_settings <= most && with_keys <= most);
    Ok(())
}

/// Runs a command, and waits until the count is that of all agents. Returns how long both took.
async fn takes(fleet: &Fleet, site: &Site, command: &[&str], count: &str) -> Result<Duration> {
    let began = Instant::now();
    site.command_process(command).exits(0).await?;
    let (all, mut found) = (AGENTS.to_string(), String::new());
    svc_sandbox::eventually(count, PATIENCE, async || {
        found = site.psql(count).await.unwrap_or_default();
        found == all
    })
    .await
    .with_context(|| {
        let keys: KeyCounts = fleet.key_counts().into_iter().sum();
        format!(
            "{found} of {all}; {} connected, {keys:?}",
            fleet.connected()
        )
    })?;
    Ok(began.elapsed())
}

/// How many statements the instances send for 1,000 heartbeats.
async fn statements(fleet: &Fleet, http: &[SocketAddr]) -> Result<f64> {
    let sent = async || Ok::<_, anyhow::Error>(transactions(http).await?.values().sum::<u64>());
    let (before, began) = (sent().await?, Instant::now());
    sleep(COUNTED).await;
    let (after, ended) = (sent().await?, Instant::now());
    let heartbeats = fleet.acks_between(began, ended);
    let expected = COUNTED.div_duration_f64(PACE.every) * f64::from(AGENTS);
    ensure!(
        heartbeats as f64 > expected * 0.8,
        "{heartbeats} heartbeats"
    );
    Ok((after - before) as f64 * 1000.0 / heartbeats as f64)
}
