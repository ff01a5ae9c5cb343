//! Registration of a new machine, with restarts and lost replies.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use anyhow::{Result, ensure};
use svc_agent::{data_dir::STATE, status::Enrolment};
use svc_testkit::{AUTO, MANUAL, ONE_USE, Site, assert_contains, metric, token, write_private};
use tokio::time::sleep;

use crate::installation::{Installed, PRESENCE, agent_id, approve, books_balance, installed};

const USES: &str = "SELECT uses FROM enrolment_tokens";
const VITALS: &str = "SELECT count(*) > 0 FROM host_metrics";

#[tokio::test]
async fn a_new_machine_registers_and_reports_its_vitals() -> Result<()> {
    let (site, _service, installed) = installed(MANUAL).await?;
    let agent = installed.start()?;

    installed.enrolment_becomes(Enrolment::Pending).await?;
    let (status, id) = (installed.status()?, agent_id(&site).await?);
    ensure!(status.agent_id == Some(id.clone()));
    let key = site.psql("SELECT encode(key, 'hex') FROM agents").await?;
    ensure!(status.fingerprint == key, "a person could not compare them");
    let message = status.message.unwrap_or_default();
    assert_contains(&message, &format!("svc-ingest agent approve {id}"));

    approve(&site, &id).await?;
    site.becomes(PRESENCE, "online").await?;
    site.becomes(VITALS, "t").await?;
    site.becomes(
        "SELECT memory_total_bytes > 0 FROM host_metrics LIMIT 1",
        "t",
    )
    .await?;
    let acknowledged = "the agent knows what is safe";
    installed
        .status_becomes(acknowledged, |status| status.spool.acked_seq >= 1)
        .await?;
    agent.stop().await?;
    site.becomes("SELECT presence, cause FROM agent_state", "offline|goodbye")
        .await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_restart_at_any_stage_loses_nothing() -> Result<()> {
    let (site, _service, mut installed) = installed(ONE_USE).await?;
    // While it is pending.
    for _ in 0..2 {
        let agent = installed.start()?;
        installed.enrolment_becomes(Enrolment::Pending).await?;
        agent.kill().await?;
    }
    // Approved while it was down.
    approve(&site, &agent_id(&site).await?).await?;
    let agent = installed.start()?;
    site.becomes(VITALS, "t").await?;
    agent.kill().await?;
    // Without its state and its token: the key is enough.
    std::fs::remove_file(installed.path().join(STATE))?;
    installed.token = String::new();
    let agent = installed.start()?;
    site.becomes("SELECT stored_count > 1 FROM agent_state", "t")
        .await?;
    agent.stop().await?;

    site.becomes(USES, "1").await?;
    site.becomes("SELECT count(*) FROM agents", "1").await?;
    books_balance(&site).await
}

#[tokio::test]
async fn lost_replies_neither_spend_the_token_twice_nor_lose_the_agent() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO.uses(1)).await?;
    let proxy = installed.behind_proxy().await?;
    installed.surroundings.timing.backoff.most = Duration::from_millis(100);
    proxy.cut_after(Some(0));
    let agent = installed.start()?;
    // The proxy passes a little more of each answer, until the service has received the request.
    for bytes in (600..4_000).step_by(150) {
        proxy.cut_after(Some(bytes));
        sleep(Duration::from_millis(300)).await;
        if site.psql(USES).await? == "1" {
            break;
        }
    }
    site.becomes(USES, "1").await?;
    let state = std::fs::read_to_string(installed.path().join(STATE));
    ensure!(
        !state.is_ok_and(|state| state.contains("eyJ")),
        "the answer was not lost"
    );
    sleep(Duration::from_secs(1)).await;
    proxy.heal()?;
    site.becomes(VITALS, "t").await?;
    site.becomes(USES, "1").await?;
    site.becomes("SELECT count(*) FROM agents", "1").await?;
    agent.stop().await?;
    books_balance(&site).await
}

#[tokio::test]
async fn a_revoked_or_rejected_agent_retries_after_an_hour() -> Result<()> {
    let (site, service) = Site::with_instance().await?;
    let revoked = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let rejected = Installed::new(&site, 2, &[service.grpc], &token(&site, MANUAL).await?)?;
    let agents = [revoked.start()?, rejected.start()?];
    revoked.connected().await?;
    site.becomes("SELECT count(*) FROM agents WHERE status = 'pending'", "1")
        .await?;
    site.psql("SELECT revoke_agent(id, 'test') FROM agents WHERE status = 'active'")
        .await?;
    site.psql("SELECT reject_agent(id, 'test') FROM agents WHERE status = 'pending'")
        .await?;

    for (installed, enrolment) in [
        (&revoked, Enrolment::Revoked),
        (&rejected, Enrolment::Rejected),
    ] {
        let in_an_hour = |status: &svc_agent::status::Status| {
            let next = status.connection.next_attempt_at;
            let wait = next.map(|next| next.duration_since(jiff::Timestamp::now()));
            status.enrolment == enrolment && wait.is_some_and(|wait| wait.as_mins() >= 55)
        };
        installed
            .status_becomes("the next attempt is in an hour", in_an_hour)
            .await?;
    }
    let before = metric(service.http, "handshakes_total").await?;
    sleep(Duration::from_secs(3)).await;
    let after = metric(service.http, "handshakes_total").await?;
    ensure!(after == before, "they still connect");
    for agent in agents {
        agent.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_bad_token_is_reported_and_a_new_one_is_read_from_its_file() -> Result<()> {
    let (site, service) = Site::with_instance().await?;
    let file = site.path("token");
    write_private(&file, "svc_enr_mistyped\n")?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], "")?;
    installed.surroundings.timing.token_refused = Duration::from_millis(200);
    installed.settings = vec![("enrolment_token_file", file.display().to_string())];
    let agent = installed.start()?;
    installed.fails_with("svc_enr_").await?;
    std::fs::write(&file, token(&site, AUTO).await? + "\n")?;
    site.becomes(PRESENCE, "online").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_refused_token_is_read_again_from_the_configuration() -> Result<()> {
    let (site, service) = Site::with_instance().await?;
    let file = site.path("agent.toml");
    write_private(&file, "enrolment_token = 'svc_enr_mistyped'\n")?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], "")?;
    installed.surroundings.timing.token_refused = Duration::from_millis(200);
    installed.config_file = Some(file.clone());
    let agent = installed.start()?;
    installed.fails_with("svc_enr_").await?;
    let good = token(&site, AUTO).await?;
    write_private(&file, format!("enrolment_token = '{good}'\n"))?;
    site.becomes(PRESENCE, "online").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_token_file_that_every_user_can_read_is_not_used() -> Result<()> {
    let (site, service) = Site::with_instance().await?;
    let file = site.path("token");
    write_private(&file, token(&site, AUTO).await?)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], "")?;
    installed.settings = vec![("enrolment_token_file", file.display().to_string())];
    let agent = installed.process(&["run"])?.start()?;
    agent.logs_contain("every user can read it").await?;
    site.expect("SELECT count(*) FROM agents", "0").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_deleted_agent_registers_again() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let agent = installed.start()?;
    site.becomes(VITALS, "t").await?;
    let first = agent_id(&site).await?;
    site.psql("DELETE FROM agents").await?;
    let another =
        format!("SELECT count(*) FROM agents WHERE status = 'active' AND id <> '{first}'");
    site.becomes(&another, "1").await?;
    site.becomes(PRESENCE, "online").await?;
    site.becomes("SELECT acked_seq > 0 FROM agent_state", "t")
        .await?;
    agent.stop().await?;
    books_balance(&site).await
}
