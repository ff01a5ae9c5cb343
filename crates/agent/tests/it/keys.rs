//! The agent changes its key: when it is asked, by its age, whenever it is killed, and after an old disk was restored.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use svc_agent::{
    data_dir::{IDENTITY, NEXT_IDENTITY},
    identity::Identity,
    status::Enrolment,
};
use svc_testkit::{AUTO, Instance, Site, eventually, token};
use tokio::time::sleep;

use crate::installation::{Installed, TIMES_OFFLINE, books_balance, installed};

const ASK: &str = "UPDATE agents SET key_change_at = clock_timestamp()";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed'";
const EVIDENCE: &str = "SELECT count(*) FROM agent_events WHERE kind = 'retired key'";

async fn count(site: &Site, sql: &str) -> Result<u64> {
    Ok(site.psql(sql).await?.parse()?)
}

/// Waits until this key is the agent's, in its folder too.
async fn has_another_key_than(installed: &Installed, key: &str) -> Result<()> {
    installed
        .status_becomes("it has another key", |status| status.fingerprint != key)
        .await?;
    eventually("its file has the name of the present one", async || {
        !installed.path().join(NEXT_IDENTITY).exists()
    })
    .await
}

#[tokio::test]
async fn an_agent_that_is_asked_changes_its_key_and_goes_on_with_its_samples() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let running = installed.start()?;
    installed.connected().await?;
    let first = installed.status()?.fingerprint;
    site.becomes("SELECT acked_seq > 0 FROM agent_state", "t")
        .await?;
    site.psql(ASK).await?;
    has_another_key_than(&installed, &first).await?;
    site.becomes(CHANGES, "1").await?;
    site.expect(TIMES_OFFLINE, "0").await?;
    let second = installed.status()?.fingerprint;
    // A restart finds the samples where they were.
    running.kill().await?;
    let running = installed.start()?;
    site.psql(ASK).await?;
    has_another_key_than(&installed, &second).await?;
    site.becomes(CHANGES, "2").await?;
    let spools: Vec<_> = fs::read_dir(installed.path().join("spool"))?
        .flatten()
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(spools, [&first[..16]], "it has one folder of samples");
    site.expect("SELECT count(*) FROM agents", "1").await?;
    site.expect(EVIDENCE, "0").await?;
    running.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_key_that_is_too_old_is_changed_without_being_asked_and_a_young_one_is_not() -> Result<()>
{
    let (site, _service, mut installed) = installed(AUTO).await?;
    let long_ago: Timestamp = "2020-01-01T00:00:00Z".parse()?;
    let (old, text) = Identity::generate_with_pem(long_ago, None)?;
    fs::create_dir(installed.path())?;
    fs::write(installed.path().join(IDENTITY), text)?;
    installed.settings = vec![("key_age", "off".into())];
    let running = installed.start()?;
    site.becomes("SELECT acked_seq > 0 FROM agent_state", "t")
        .await?;
    ensure!(installed.status()?.fingerprint == old.fingerprint());
    ensure!(!installed.path().join(NEXT_IDENTITY).exists(), "it is off");
    running.stop().await?;

    installed.settings.clear();
    let running = installed.start()?;
    has_another_key_than(&installed, &old.fingerprint()).await?;
    site.becomes(CHANGES, "1").await?;
    running.stop().await?;
    // The new one is young.
    let running = installed.start()?;
    installed.connected().await?;
    site.becomes("SELECT presence FROM agent_state", "online")
        .await?;
    ensure!(!installed.path().join(NEXT_IDENTITY).exists());
    site.expect(CHANGES, "1").await?;
    running.stop().await
}

#[tokio::test]
async fn an_old_disk_with_a_retired_key_waits_for_a_person_and_disturbs_nobody() -> Result<()> {
    let (site, _service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;
    let first = original.status()?.fingerprint;
    running.stop().await?;
    let mut snapshot = original.cloned(&site, 1)?;
    snapshot.token = String::new();

    let running = original.start()?;
    original.connected().await?;
    site.psql(ASK).await?;
    has_another_key_than(&original, &first).await?;
    site.becomes(CHANGES, "1").await?;
    let epoch = site.psql("SELECT epoch FROM agent_state").await?;

    let restored = snapshot.start()?;
    snapshot.enrolment_becomes(Enrolment::Pending).await?;
    site.becomes(EVIDENCE, "1").await?;
    let pending =
        "SELECT count(*) FROM agents WHERE status = 'pending' AND cloned_from = conflict_with";
    site.expect(pending, "1").await?;
    let incumbent = "SELECT s.epoch FROM agent_state s JOIN agents a ON a.id = s.agent_id WHERE a.status = 'active'";
    site.expect(incumbent, &epoch).await?;
    restored.stop().await?;
    running.stop().await
}

#[tokio::test]
async fn a_next_key_that_the_service_does_not_know_makes_no_second_agent() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let running = installed.start()?;
    installed.connected().await?;
    let first = installed.status()?.fingerprint;
    running.kill().await?;
    // It was killed before it announced the key, and has lost its JWT. Its token admits any number of agents.
    let (next, text) = Identity::generate_with_pem(Timestamp::now(), Some(&first[..16]))?;
    fs::write(installed.path().join(NEXT_IDENTITY), text)?;
    fs::remove_file(installed.path().join("state.json"))?;
    let running = installed.start()?;
    has_another_key_than(&installed, &first).await?;
    site.becomes(CHANGES, "1").await?;
    site.expect("SELECT encode(key, 'hex') FROM agents", &next.fingerprint())
        .await?;
    running.stop().await?;
    books_balance(&site).await
}

async fn pair(site: &Site) -> Result<[Instance; 2]> {
    let instance = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let instance = instance.timing(|timing| timing.offers = Duration::from_millis(200));
    instance.start_pair().await
}

/// The kills fall on the making of a key, its announcement, its first use and the change of the files, as they come. New
/// instances take over every few rounds: they know no agent, and have opened no stream of it.
async fn killed(times: u32) -> Result<()> {
    let site = Site::new().await?;
    let secret = token(&site, AUTO).await?;
    let mut instances = pair(&site).await?;
    let addresses = |pair: &[Instance; 2]| [pair[0].grpc, pair[1].grpc];
    let mut installed = Installed::new(&site, 1, &addresses(&instances), &secret)?;
    let epoch = "SELECT coalesce(max(epoch), 0) FROM agent_state";
    for round in 0..times {
        if round % 5 == 4 {
            instances = pair(&site).await?;
            installed.addresses = addresses(&instances).into();
        }
        let before = count(&site, epoch).await?;
        let agent = installed.process(&["run"])?.start()?;
        eventually("it is back", async || {
            count(&site, epoch).await.is_ok_and(|now| now > before)
        })
        .await?;
        site.psql(ASK).await?;
        sleep(Duration::from_millis(rand::random_range(0..1800))).await;
        agent.kill().await?;
    }
    ensure!(count(&site, CHANGES).await? > 0, "no key was changed");
    // Unharmed, the next change succeeds.
    let before = count(&site, CHANGES).await?;
    let agent = installed.process(&["run"])?.start()?;
    site.psql(ASK).await?;
    eventually("it changes its key", async || {
        count(&site, CHANGES).await.is_ok_and(|now| now > before)
    })
    .await?;
    installed.connected().await?;
    agent.stop().await?;
    let one = "SELECT (SELECT count(*) FROM agents), (SELECT count(*) FROM hosts)";
    site.expect(one, "1|1").await?;
    site.expect(EVIDENCE, "0").await?;
    let stored = "SELECT stored_count FROM agent_state";
    ensure!(count(&site, stored).await? >= u64::from(times) / 2);
    books_balance(&site).await
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_keeps_a_key_that_works_and_its_samples() -> Result<()>
{
    killed(10).await
}

#[tokio::test]
#[ignore = "takes half an hour: run by make chaos"]
async fn an_agent_that_is_killed_five_hundred_times_keeps_a_key_that_works_each_time() -> Result<()>
{
    killed(500).await
}
