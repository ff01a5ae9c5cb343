//! The commands of the binary: output, exit codes and signals.

use anyhow::{Result, ensure};
use serde_json::Value;
use svc_sandbox::free_port;
use svc_testkit::{AUTO, MANUAL, Site, assert_contains, write_private};

use crate::installation::{EPOCH, Installed, PRESENCE, agent_id, approve, installed};

#[tokio::test]
async fn sigterm_sends_goodbye() -> Result<()> {
    let (site, _service, installed) = installed(MANUAL).await?;
    let agent = installed.process(&[])?.start()?;
    site.becomes("SELECT status FROM agents", "pending").await?;
    let id = agent_id(&site).await?;
    approve(&site, &id).await?;
    site.becomes(PRESENCE, "online").await?;
    agent.stop().await?;
    site.becomes("SELECT presence, cause FROM agent_state", "offline|goodbye")
        .await?;

    let logs = agent.logs();
    let key = site
        .psql("SELECT left(encode(key, 'hex'), 16) FROM agents")
        .await?;
    let wanted = [format!("svc-ingest agent approve {id}"), key];
    ensure!(wanted.iter().all(|text| logs.contains(text)), "{logs}");
    ensure!(!logs.contains(&installed.token), "the token is in the log");
    ensure!(!logs.contains("eyJ"), "a JWT is in the log");
    Ok(())
}

#[tokio::test]
async fn sigterm_stops_an_agent_that_has_no_connection() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::without_service(&site)?;
    let agent = installed.process(&["run"])?.start()?;
    installed.fails_with("no connection to").await?;
    agent.stop().await
}

#[tokio::test]
async fn status_describes_the_agent_whether_or_not_it_runs() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let before = installed.run(&["status"], 1).await?;
    assert_contains(&before.stdout, "nothing is known here yet");

    let agent = installed.process(&["run"])?.start()?;
    installed
        .status_becomes("a sample is safe", |status| status.spool.acked_seq > 0)
        .await?;
    let running = installed.run(&["status"], 0).await?;
    let id = agent_id(&site).await?;
    for wanted in [
        "running, process",
        "connected to 127.0.0.1",
        "active",
        id.as_str(),
    ] {
        assert_contains(&running.stdout, wanted);
    }
    let json = installed.run(&["status", "--output", "json"], 0).await?;
    let json: Value = serde_json::from_str(&json.stdout)?;
    ensure!(
        json["running"] == true && json["status"]["enrolment"] == "active",
        "{json}"
    );
    ensure!(!json.to_string().contains("eyJ"), "the JWT is shown");

    agent.stop().await?;
    let after = installed.run(&["status"], 1).await?;
    assert_contains(&after.stdout, "not running");
    assert_contains(&after.stdout, &id);
    Ok(())
}

#[tokio::test]
async fn check_finds_problems_and_changes_nothing() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    let good = installed.run(&["check"], 0).await?;
    ensure!(!good.stdout.contains("FAIL"), "{good:?}");
    assert_contains(&good.stdout, "it answers");
    assert_contains(&good.stdout, "clock");
    ensure!(!installed.path().exists(), "it made the folder");
    site.expect("SELECT count(*) FROM agents", "0").await?;

    installed.ca_cert_file = site.path("none.crt");
    installed
        .addresses
        .push(([127, 0, 0, 1], free_port()?).into());
    let bad = installed.run(&["check"], 1).await?;
    assert_contains(&bad.stdout, "ca_cert_file");
    let nothing = installed
        .run(&["check", "--ingest-address", "a:b"], 2)
        .await?;
    assert_contains(&nothing.stdout, "--ingest-address");
    Ok(())
}

#[tokio::test]
async fn check_does_not_disturb_a_running_agent() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let agent = installed.process(&["run"])?.start()?;
    site.becomes(EPOCH, "online|1").await?;
    let good = installed.run(&["check"], 0).await?;
    assert_contains(&good.stdout, "in use by process");
    site.expect(EPOCH, "online|1").await?;
    agent.stop().await
}

#[tokio::test]
async fn jwt_prints_the_current_jwt() -> Result<()> {
    let (site, _service, installed) = installed(AUTO).await?;
    let without = installed.run(&["jwt"], 1).await?;
    assert_contains(&without.stderr, "has no JWT");
    let agent = installed.process(&["run"])?.start()?;
    site.becomes(PRESENCE, "online").await?;
    svc_testkit::eventually("it has a JWT", async || {
        installed.run(&["jwt"], 0).await.is_ok()
    })
    .await?;
    let printed = installed.run(&["jwt"], 0).await?.stdout;
    let parts: Vec<&str> = printed.trim().split('.').collect();
    ensure!(parts.len() == 3 && printed.starts_with("eyJ"));
    agent.stop().await
}

/// Root can read every file; the agent's user cannot.
#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn root_checks_what_the_agents_user_will_see() -> Result<()> {
    let (site, _service, mut installed) = installed(AUTO).await?;
    std::fs::create_dir(installed.path())?;
    let certificate = std::fs::read(&installed.ca_cert_file)?;
    installed.ca_cert_file = site.path("private.crt");
    write_private(&installed.ca_cert_file, certificate)?;
    installed.run(&["check"], 0).await?;
    give_away(&installed)?;
    let as_user = installed.run(&["check"], 1).await?;
    assert_contains(&as_user.stdout, "FAIL  trust");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn root_leaves_no_files_in_the_folder_of_another_user() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::without_service(&site)?;
    std::fs::create_dir(installed.path())?;
    give_away(&installed)?;
    let refused = installed.run(&["run"], 1).await?;
    assert_contains(&refused.stderr, "belongs to another user");
    ensure!(std::fs::read_dir(installed.path())?.next().is_none());
    Ok(())
}

/// Gives the data folder to another user.
fn give_away(installed: &Installed) -> Result<()> {
    let nobody = Some(65_534);
    Ok(std::os::unix::fs::chown(installed.path(), nobody, nobody)?)
}

#[tokio::test]
async fn sample_prints_the_vitals_of_the_machine() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::new(&site, 1, &[], "")?;
    let table = installed.run(&["sample"], 0).await?;
    for name in ["cpu", "load", "memory", "up for", "processes"] {
        assert_contains(&table.stdout, name);
    }
    let json = installed.run(&["sample", "--output", "json"], 0).await?;
    let json: Value = serde_json::from_str(&json.stdout)?;
    for name in ["cpu_steal_ms", "interfaces", "block_devices", "pressure"] {
        ensure!(json.get(name).is_some(), "{name} is missing: {json}");
    }
    Ok(())
}

#[tokio::test]
async fn configuration_problems_are_exit_code_2() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::new(&site, 1, &[], "")?;
    let refused = installed
        .run(&["--log", "loud", "--spool-age", "never"], 2)
        .await?;
    for name in ["ingest_address", "--log", "--spool-age"] {
        assert_contains(&refused.stderr, name);
    }
    Ok(())
}
