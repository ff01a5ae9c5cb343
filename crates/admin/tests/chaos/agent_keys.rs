//! Agents that change their keys again and again while instances are killed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use svc_testkit::{Fleet, KeyCounts, Latencies, Pace, ServiceProcess, Site, raise_file_limit};
use tokio::time::sleep;

/// Each has a database and two instances of its own. An instance must live for seconds to be of any use.
const PAIRS: usize = 8;
const AGENTS: u32 = 25;
const KILLS: usize = 63;
const LONGEST: Duration = Duration::from_mins(5);
const PACE: Pace = Pace {
    patience: Duration::from_secs(5),
    keepalive: Duration::from_secs(5),
    ..Pace::BRISK
};

const ASK: &str = "UPDATE agents SET key_change_at = clock_timestamp() WHERE key_change_at IS NULL";
const WAITING: &str = "SELECT count(*) FROM agents WHERE key_change_at IS NOT NULL";
const MACHINES: &str =
    "SELECT (SELECT count(*) FROM agents WHERE status = 'active'), (SELECT count(*) FROM agents),
    (SELECT count(*) FROM hosts)";
const EVIDENCE: &str = "SELECT count(*) FROM agent_events WHERE kind = 'retired key'";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed'";
const KEYS: &str = "SELECT id, encode(key, 'hex') FROM agents ORDER BY id";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "strict: run by make chaos"]
async fn agents_that_change_their_keys_keep_one_identity_through_500_kills() -> Result<()> {
    raise_file_limit();
    let began = Instant::now();
    let pairs = try_join_all((0..PAIRS).map(|_| killed(KILLS))).await?;
    let took = began.elapsed();
    let starts = pairs.iter().flat_map(|pair| pair.starts.clone());
    let starts = Latencies::of(starts.collect());
    let counts: KeyCounts = pairs.into_iter().map(|pair| pair.counts).sum();
    let (kills, agents) = (PAIRS * KILLS, PAIRS * AGENTS as usize);
    println!(
        "instances killed {kills} times in {took:.0?} (serving again after {starts}), {agents} agents: {} keys announced, {} promoted; \
         {} streams were lost between announcement and first use, {} of them after the key was stored; {} second handshakes; \
         0 copies, 0 second agents",
        counts.announced,
        counts.changed,
        counts.interrupted,
        counts.stored_before,
        counts.second_handshakes
    );
    ensure!(kills >= 500);
    ensure!(
        counts.interrupted > 0 && counts.stored_before > 0,
        "{counts:?}"
    );
    ensure!(took <= LONGEST, "{took:?}");
    Ok(())
}

struct Pair {
    counts: KeyCounts,
    starts: Vec<Duration>,
}

/// Kills two instances in turns, so many times, while all their agents change keys.
async fn killed(times: usize) -> Result<Pair> {
    let site = Site::new().await?;
    let mut instances = site.server_process().start_pair().await?;
    let grpc = instances.each_ref().map(|instance| instance.grpc);
    let fleet = Fleet::changing(&site, &grpc, AGENTS, PACE).await?;
    let asking = async {
        loop {
            // A deadlock with a promotion only delays the request.
            let _ = site.psql(ASK).await;
            sleep(Duration::from_millis(500)).await;
        }
    };
    let mut starts = Vec::new();
    let killing = async {
        for round in 0..times {
            sleep(Duration::from_millis(rand::random_range(1500..4000))).await;
            starts.push(start_again(&site, &mut instances[round % 2]).await?);
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::select! {
        () = asking => {}
        killed = killing => killed?,
    }
    is_one_agent_each(&site, &fleet, &mut instances).await?;
    let counts = fleet.key_counts().into_iter().sum();
    Ok(Pair { counts, starts })
}

/// Returns how long it took to serve again.
async fn start_again(site: &Site, victim: &mut ServiceProcess) -> Result<Duration> {
    victim.kill().await?;
    let began = Instant::now();
    *victim = site.server_process().on_ports_of(victim).start().await?;
    Ok(began.elapsed())
}

async fn is_one_agent_each(
    site: &Site,
    fleet: &Fleet,
    instances: &mut [ServiceProcess; 2],
) -> Result<()> {
    site.becomes(WAITING, "0").await?;
    fleet.keys_settle().await?;
    let counts = fleet.key_counts();
    ensure!(counts.iter().all(|agent| agent.changed > 0), "{counts:?}");
    let sum: KeyCounts = counts.into_iter().sum();
    ensure!(sum.refused + sum.as_a_copy == 0, "{sum:?}");
    let lost = fleet.absences().len() as u64;
    ensure!(
        sum.second_handshakes <= lost,
        "{sum:?} with {lost} lost streams"
    );
    // All connect again with the keys that they have now.
    for instance in instances {
        start_again(site, instance).await?;
    }
    fleet.all_connected().await?;
    fleet.all_acked_again().await?;
    let after: KeyCounts = fleet.key_counts().into_iter().sum();
    ensure!(after.changed == sum.changed && after.second_handshakes == sum.second_handshakes);
    let keys = site.psql(KEYS).await?;
    ensure!(keys.lines().eq(fleet.present_keys()?), "other keys: {keys}");
    site.expect(CHANGES, &sum.changed.to_string()).await?;
    site.expect(MACHINES, &format!("{AGENTS}|{AGENTS}|{AGENTS}"))
        .await?;
    site.expect(EVIDENCE, "0").await?;
    fleet.audit(site).await.context("after all kills")
}
