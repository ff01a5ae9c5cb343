//! The agent changes its key: when it is asked, by its age, whenever it is killed, and after an old disk was restored.

mod absence;
mod killed;

use std::fs;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use svc_agent::{
    data_dir::{IDENTITY, NEXT_IDENTITY},
    identity::Identity,
    status::Enrolment,
};
use svc_testkit::{AUTO, eventually};

use crate::installation::{Installed, TIMES_OFFLINE, books_balance, installed};

const ASK: &str = "UPDATE agents SET key_change_at = clock_timestamp()";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed'";
const EVIDENCE: &str = "SELECT count(*) FROM agent_events WHERE kind = 'retired key'";

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

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_keeps_a_key_that_works_and_its_samples() -> Result<()>
{
    killed::killed(2, 10).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes: run by make chaos"]
async fn an_agent_that_is_killed_fifty_times_keeps_a_key_that_works_as_do_nine_others() -> Result<()>
{
    killed::killed(10, 50).await
}
