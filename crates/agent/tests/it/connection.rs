//! The connection of the agent: drains, frozen instances, refused JWTs, and samples kept meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_agent::{caller::Facts, data_dir::STATE};
use svc_testkit::{AUTO, Instance, PATIENCE, Proxy, Site, eventually, token};

use crate::installation::{EPOCH, Installed, TIMES_OFFLINE, away, books_balance, installed};

/// Records each stream that ended with a drain while it was the newest.
const WATCH_FOR_LEAVERS: &str = "CREATE TABLE leavers (at timestamptz);
    CREATE FUNCTION leaver() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO public.leavers VALUES (now()); RETURN NULL; END';
    CREATE TRIGGER leaver AFTER UPDATE ON agent_state FOR EACH ROW
        WHEN (NEW.cause = 'drained') EXECUTE FUNCTION leaver();";

/// The number of the instance that holds the agent's stream.
async fn holder_of(site: &Site, instances: &[Instance; 2]) -> Result<usize> {
    let sql =
        "SELECT grpc_address FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id";
    let address = site.psql(sql).await?;
    let mut addresses = instances.iter().map(|instance| instance.grpc.to_string());
    addresses
        .position(|known| known == address)
        .context(address)
}

#[tokio::test]
async fn on_a_drain_the_agent_connects_before_it_leaves() -> Result<()> {
    let site = Site::new().await?;
    let instances = site.instance().start_pair().await?;
    let addresses = [instances[0].grpc, instances[1].grpc];
    let secret = token(&site, AUTO).await?;
    let installed = Installed::new(&site, 1, &addresses, &secret)?;
    let agent = installed.start()?;
    installed.connected().await?;
    site.becomes(EPOCH, "online|1").await?;

    site.psql(WATCH_FOR_LEAVERS).await?;
    let holder = holder_of(&site, &instances).await?;
    let mut instances: Vec<Instance> = instances.into();
    let asked = Instant::now();
    instances.remove(holder).stop().await?;
    // The instance waits up to 8 s for its agents to leave.
    ensure!(asked.elapsed() < Duration::from_secs(20));
    site.becomes(EPOCH, "online|2").await?;
    site.expect(TIMES_OFFLINE, "0").await?;
    // The service writes the end of a stream only while it is the newest.
    let left = site.psql("SELECT count(*) FROM leavers").await?;
    ensure!(left == "0", "it left before it had connected");
    agent.stop().await?;
    books_balance(&site).await
}

/// Freezes the network to one address, and returns how long the agent took to move to the other.
async fn leaves_a_frozen_instance(patience: Option<(Duration, Duration)>) -> Result<Duration> {
    let site = Site::new().await?;
    let instances = site.instance().start_pair().await?;
    let frozen = Proxy::start(vec![instances[0].grpc]).await?;
    let other = Proxy::start(vec![instances[1].grpc]).await?;
    other.refuse(true)?;
    let secret = token(&site, AUTO).await?;
    let mut installed = Installed::new(&site, 1, &[frozen.address(), other.address()], &secret)?;
    if let Some((every, answer)) = patience {
        let patience = &mut installed.surroundings.timing.timeouts;
        (patience.ping_every, patience.ping_answer) = (every, answer);
    }
    let agent = installed.start()?;
    installed.connected().await?;
    ensure!(holder_of(&site, &instances).await? == 0);
    other.refuse(false)?;
    frozen.black_hole(true);
    let lost = Instant::now();
    svc_sandbox::eventually("it has left", 2 * PATIENCE, async || {
        site.psql(EPOCH)
            .await
            .is_ok_and(|state| state == "online|2")
    })
    .await?;
    let took = lost.elapsed();
    ensure!(holder_of(&site, &instances).await? == 1);
    agent.stop().await?;
    books_balance(&site).await?;
    Ok(took)
}

#[tokio::test]
async fn the_agent_leaves_a_frozen_instance_for_another_address() -> Result<()> {
    let second = Duration::from_secs(1);
    leaves_a_frozen_instance(Some((second, second))).await?;
    Ok(())
}

/// With the default pings: every 20 s, with 10 s for the answer.
#[tokio::test]
#[ignore = "a strict time: run by `make chaos`"]
async fn the_agent_leaves_a_frozen_instance_within_half_a_minute() -> Result<()> {
    let took = leaves_a_frozen_instance(None).await?;
    println!("left a frozen instance after {took:.1?}");
    ensure!(took < Duration::from_secs(35), "{took:?}");
    Ok(())
}

/// What the agent keeps about its registration.
fn state_of(installed: &Installed) -> Result<serde_json::Value> {
    let text = std::fs::read_to_string(installed.path().join(STATE))?;
    Ok(serde_json::from_str(&text)?)
}

#[tokio::test]
async fn a_refused_jwt_is_replaced_with_the_same_key() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await?;
    let path = installed.path().join(STATE);
    let mut known = state_of(&installed)?;
    let jwt = known["jwt"].as_str().context("a JWT")?.to_owned();
    known["jwt"] = format!("{}AAAA", &jwt[..jwt.len() - 4]).into();
    std::fs::write(&path, known.to_string())?;

    installed.token = String::new();
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|2").await?;
    let now = state_of(&installed)?;
    ensure!(now["jwt"] != known["jwt"], "it kept the bad JWT");
    agent.stop().await
}

#[tokio::test]
async fn an_agent_whose_jwt_was_refused_samples_through_a_restart() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await?;
    // What it keeps after a refusal: everything but the JWT.
    let mut known = state_of(&installed)?;
    known["jwt"] = serde_json::Value::Null;
    std::fs::write(installed.path().join(STATE), known.to_string())?;
    let nobody = ([127, 0, 0, 1], svc_sandbox::free_port()?).into();
    let there = std::mem::replace(&mut installed.addresses, vec![nobody]);
    let agent = installed.start()?;
    let (before, _) = agent.recorder.numbers();
    eventually("it takes samples", async || {
        agent.recorder.numbers().0 > before
    })
    .await?;
    agent.stop().await?;
    installed.addresses = there;
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|2").await?;
    let all = format!("SELECT stored_count >= {before} FROM agent_state");
    site.becomes(&all, "t").await?;
    agent.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_jwt_renewed_over_the_stream_is_stored() -> Result<()> {
    let site = Site::new().await?;
    // Every JWT expires sooner, so it is renewed at once.
    let renewing = site
        .instance()
        .timing(|timing| timing.renew_before = Duration::from_hours(25));
    let service = renewing.start().await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let agent = installed.start()?;
    installed.connected().await?;
    let first = state_of(&installed)?["jwt"].clone();
    eventually("another JWT is kept", async || {
        state_of(&installed).is_ok_and(|state| state["jwt"].is_string() && state["jwt"] != first)
    })
    .await?;
    ensure!(site.psql(EPOCH).await? == "online|1", "it lost its stream");
    agent.stop().await
}

#[tokio::test]
async fn a_replaced_agent_waits_half_a_minute() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    installed.surroundings.timing.replaced = svc_agent::timing::Timing::default().replaced;
    let first = installed.start()?;
    installed.connected().await?;
    let second = installed.cloned(&site, 1)?;
    let second = second.start()?;
    installed
        .status_becomes("the older one waits", |status| {
            let next = status.connection.next_attempt_at;
            let wait = next.map(|next| next.duration_since(jiff::Timestamp::now()).as_secs());
            let error = status.connection.error.as_deref().unwrap_or_default();
            error.contains("took over") && wait.is_some_and(|wait| (20..=30).contains(&wait))
        })
        .await?;
    second.stop().await?;
    first.stop().await
}

#[tokio::test]
async fn the_samples_of_an_outage_arrive_after_it() -> Result<()> {
    let site = Site::new().await?;
    let service = site
        .instance()
        .set("INGEST_HEARTBEAT_INTERVAL", "5s")
        .start()
        .await?;
    let secret = token(&site, AUTO).await?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let proxy = installed.behind_proxy().await?;
    let agent = installed.start()?;
    installed.connected().await?;
    away(&proxy, true)?;
    installed.disconnected().await?;
    // More samples than fit into one report.
    for _ in 0..1_200 {
        agent.recorder.take().await;
    }
    let (next, _) = agent.recorder.numbers();
    let agent = {
        agent.kill().await?;
        installed.start()?
    };
    proxy.refuse(false)?;
    let stored = format!("SELECT stored_count >= {} FROM agent_state", next - 1);
    site.becomes(&stored, "t").await?;
    site.becomes("SELECT gap_count + rejected_count FROM agent_state", "0")
        .await?;
    agent.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn sample_times_follow_the_service_when_the_wall_clock_is_wrong() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let clock = installed.surroundings.clock.clone();
    clock.move_wall(-365 * 86_400_000);
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    for step in [-3_600_000, 86_400_000, -7_200_000] {
        clock.move_wall(step);
        agent.recorder.take().await;
    }
    site.becomes(
        "SELECT stored_count >= 4, rejected_count FROM agent_state",
        "t|0",
    )
    .await?;
    let right = "SELECT bool_and(sampled_at BETWEEN now() - interval '5 min' AND now() + interval '1 min') FROM host_metrics";
    site.becomes(right, "t").await?;
    site.becomes(
        "SELECT clock_skew_ms < -360 * 86400000::bigint FROM agent_state",
        "t",
    )
    .await?;
    agent.stop().await
}

/// After a reboot with a wrong clock, before any Welcome has corrected it.
#[tokio::test]
async fn a_clock_a_week_ahead_at_boot_discards_no_sample() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    let proxy = installed.behind_proxy().await?;
    installed.settings = vec![("spool_age", "7d".into())];
    let agent = installed.start()?;
    // The agent knows the time as soon as it has its Welcome; the service says `online` before that.
    installed.connected().await?;
    away(&proxy, true)?;
    installed.disconnected().await?;
    for _ in 0..10 {
        agent.recorder.take().await;
    }
    agent.stop().await?;

    let mut facts = svc_testkit::machine(1);
    facts.boot_id = "7f1a9f0e-8c5c-4f9d-9f54-27f0d1b1a0c1".into();
    installed.surroundings.facts = Facts::Given(Box::new(facts));
    installed.surroundings.clock.move_wall(8 * 86_400_000);
    let agent = installed.start()?;
    for _ in 0..10 {
        agent.recorder.take().await;
    }
    let (next, _) = agent.recorder.numbers();
    proxy.refuse(false)?;
    let all = format!("SELECT stored_count >= {} FROM agent_state", next - 1);
    site.becomes(&all, "t").await?;
    site.becomes("SELECT gap_count + rejected_count FROM agent_state", "0")
        .await?;
    let right = "SELECT bool_and(sampled_at BETWEEN now() - interval '5 min' AND now() + interval '1 min') FROM host_metrics";
    site.becomes(right, "t").await?;
    agent.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_newer_version_is_reported_with_its_url() -> Result<()> {
    let site = Site::new().await?;
    let service = site
        .instance()
        .set("INGEST_AGENT_LATEST_VERSION", "99.1.0")
        .set("INGEST_AGENT_DOWNLOAD_BASE_URL", "https://fleet.example")
        .start()
        .await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let agent = installed.start()?;
    installed
        .status_becomes("the notice is shown", |status| status.update.is_some())
        .await?;
    let notice = installed.status()?.update.context("a notice")?;
    ensure!(notice.version == "99.1.0");
    let beginning = "https://fleet.example/download/svc-agent/99.1.0/";
    ensure!(notice.url.starts_with(beginning), "{}", notice.url);
    agent.stop().await
}
