//! A copy of a disk gets a key of its own and does not disturb the original.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use svc_agent::{
    caller::Facts,
    data_dir::{IDENTITY, SUCCESSOR},
    identity::Identity,
    status::Enrolment,
    timing::Timing,
};
use svc_testkit::{AUTO, Site, machine};

use crate::installation::{Installed, agent_id, approve, books_balance, installed};

fn former_keys(installed: &Installed) -> Result<usize> {
    let files = std::fs::read_dir(installed.path())?.flatten();
    let is_former = |name: &str| name.starts_with("former-");
    Ok(files
        .filter(|file| is_former(&file.file_name().to_string_lossy()))
        .count())
}

/// A copy that its machine does not give away: the hypervisor has no UUID.
fn indistinct(original: &Installed, site: &Site) -> Result<Installed> {
    let mut copy = original.cloned(site, 2)?;
    let mut facts = machine(2);
    facts.hardware_uuid = String::new();
    copy.surroundings.facts = Facts::Given(Box::new(facts));
    copy.token = String::new();
    Ok(copy)
}

/// A machine whose cloud gives every instance an id of its own.
fn in_cloud(number: u32) -> Facts {
    let mut facts = machine(number);
    facts.cloud_instance_id = format!("aws/i-{number}");
    Facts::Given(Box::new(facts))
}

#[tokio::test]
async fn a_copy_that_the_service_notices_takes_a_key_of_its_own() -> Result<()> {
    let (site, _service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;
    let copy = indistinct(&original, &site)?;
    let cloned = copy.start()?;
    copy.enrolment_becomes(Enrolment::Pending).await?;
    ensure!(copy.status()?.fingerprint != original.status()?.fingerprint);
    let online = "SELECT epoch FROM agent_state WHERE presence = 'online'";
    site.expect(online, "1").await?;
    cloned.stop().await?;
    running.stop().await
}

/// The service may presume an origin online that is gone; no new key is made meanwhile.
#[tokio::test]
async fn a_key_is_kept_until_refusals_have_outlasted_every_grace() -> Result<()> {
    let (site, _service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;
    let mut copy = indistinct(&original, &site)?;
    copy.surroundings.timing.in_use = Timing::default().in_use;
    let key = original.status()?.fingerprint;
    let returned = copy.start()?;
    copy.status_becomes("the key is refused", |status| {
        let error = status.connection.error.as_deref().unwrap_or_default();
        error.contains("another machine") || error.contains("live")
    })
    .await?;
    running.stop().await?;
    copy.connected().await?;
    ensure!(copy.status()?.fingerprint == key, "it changed its key");
    site.expect("SELECT count(*) FROM agents", "1").await?;
    returned.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_valid_token_admits_a_copy_like_any_new_machine() -> Result<()> {
    let (site, _service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;
    let copy = original.cloned(&site, 2)?;
    let cloned = copy.start()?;
    site.becomes(
        "SELECT count(*) FROM agent_state WHERE presence = 'online' AND epoch = 1",
        "2",
    )
    .await?;
    // The copied disk has the original's status until the copy writes its own.
    let key = original.status()?.fingerprint;
    copy.status_becomes("it has a key of its own", |status| {
        status.fingerprint != key
    })
    .await?;
    site.expect("SELECT uses FROM enrolment_tokens", "2")
        .await?;
    cloned.stop().await?;
    running.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_copy_registers_as_a_pending_host_with_its_origin() -> Result<()> {
    let (site, _service, mut original) = installed(AUTO).await?;
    original.surroundings.facts = in_cloud(1);
    let running = original.start()?;
    original.connected().await?;
    let origin = agent_id(&site).await?;

    let mut copy = original.cloned(&site, 2)?;
    copy.token = String::new();
    copy.surroundings.facts = in_cloud(2);
    // The service's refusals do not count for minutes: the copy must notice it by itself.
    copy.surroundings.timing.in_use = Timing::default().in_use;
    let cloned = copy.start()?;
    let pending = format!(
        "SELECT count(*) FROM agents a JOIN hosts h ON h.id = a.host_id
          WHERE a.status = 'pending' AND a.cloned_from = '{origin}' AND h.hostname = 'web-2'"
    );
    site.becomes(&pending, "1").await?;
    copy.enrolment_becomes(Enrolment::Pending).await?;
    ensure!(former_keys(&copy)? == 1, "the old key was not set aside");
    ensure!(copy.status()?.fingerprint != original.status()?.fingerprint);
    let undisturbed =
        format!("SELECT presence, epoch FROM agent_state WHERE agent_id = '{origin}'");
    site.expect(&undisturbed, "online|1").await?;
    site.becomes("SELECT uses FROM enrolment_tokens", "1")
        .await?;

    let successor = copy.status()?.agent_id.expect("its id is known");
    approve(&site, &successor).await?;
    let online =
        format!("SELECT presence, acked_seq > 0 FROM agent_state WHERE agent_id = '{successor}'");
    site.becomes(&online, "online|t").await?;
    site.expect(&undisturbed, "online|1").await?;
    ensure!(former_keys(&copy)? == 0, "the old key was not deleted");
    let spools = std::fs::read_dir(copy.path().join("spool"))?.count();
    ensure!(spools == 1, "the samples of the old key were not deleted");
    cloned.stop().await?;
    running.stop().await?;
    books_balance(&site).await
}

/// The machine failed over: its disk in other hardware, while the service keeps the agent online through an outage.
#[tokio::test]
async fn a_machine_that_fails_over_during_an_outage_keeps_its_key_and_its_samples() -> Result<()> {
    let (site, service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;
    let fingerprint = original.status()?.fingerprint;
    running.kill().await?;
    let agent = agent_id(&site).await?;
    let presence = format!("SELECT presence FROM agent_state WHERE agent_id = '{agent}'");
    site.becomes(&presence, "offline").await?;
    let kept_online = "UPDATE agent_state SET presence = 'online', cause = 'drained', online_until = now() + interval '10 minutes'";
    site.psql(kept_online).await?;

    let mut moved = original.cloned(&site, 2)?;
    let mut facts = machine(2);
    facts.machine_id = machine(1).machine_id; // It is on the disk.
    moved.surroundings.facts = Facts::Given(Box::new(facts));
    let failed_over = moved.start()?;
    moved
        .fails_with("counts as online on another machine")
        .await?;
    ensure!(!moved.path().join(SUCCESSOR).exists(), "it gave its key up");
    site.psql("UPDATE agent_state SET online_until = now()")
        .await?;
    moved.connected().await?;
    ensure!(moved.status()?.fingerprint == fingerprint);
    site.expect("SELECT count(*), min(status) FROM agents", "1|active")
        .await?;
    failed_over.stop().await?;
    drop(service);
    books_balance(&site).await
}

#[tokio::test]
async fn an_interrupted_copy_continues_with_the_key_it_had_created() -> Result<()> {
    let (site, _service, original) = installed(AUTO).await?;
    let running = original.start()?;
    original.connected().await?;

    // The successor key exists when the copy is interrupted.
    let mut copy = original.cloned(&site, 2)?;
    copy.token = String::new();
    let (identity, text) = Identity::generate_with_pem(Timestamp::now(), None)?;
    std::fs::write(copy.path().join(SUCCESSOR), &text)?;
    let cloned = copy.start()?;
    let known = format!(
        "SELECT count(*) FROM agents WHERE status = 'pending' AND encode(key, 'hex') = '{}'",
        identity.fingerprint()
    );
    site.becomes(&known, "1").await?;
    copy.enrolment_becomes(Enrolment::Pending).await?;
    cloned.kill().await?;

    // A crash between the two renames.
    std::fs::rename(copy.path().join(IDENTITY), copy.path().join(SUCCESSOR))?;
    let cloned = copy.start()?;
    copy.enrolment_becomes(Enrolment::Pending).await?;
    ensure!(copy.status()?.fingerprint == identity.fingerprint());
    site.becomes("SELECT count(*) FROM agents", "2").await?;
    cloned.stop().await?;
    running.stop().await
}
