//! The binary: what its commands print, and how it ends.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use svc_sandbox::free_port;

use crate::{
    agents::{AUTO, MANUAL, token},
    harness::Site,
    played::{Installed, agent_id, approve, becomes},
    process::AgentProcess,
};

#[tokio::test]
async fn sigterm_is_a_goodbye() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, MANUAL).await?)?;
    let mut agent = AgentProcess::start(&installed, &[])?;
    becomes(&site, "SELECT status FROM agents", "pending").await?;
    let id = agent_id(&site).await?;
    approve(&site, &id).await?;
    becomes(&site, "SELECT presence FROM agent_state", "online").await?;
    agent.stop().await?;
    becomes(
        &site,
        "SELECT presence, cause FROM agent_state",
        "offline|goodbye",
    )
    .await?;

    let logs = agent.logs();
    let key = site
        .psql("SELECT left(encode(key, 'hex'), 16) FROM agents")
        .await?;
    let wanted = [format!("svc-ingest agent approve {id}"), key];
    ensure!(wanted.iter().all(|text| logs.contains(text)), "{logs}");
    ensure!(
        !logs.contains(&installed.token),
        "the token stands in the log"
    );
    ensure!(!logs.contains("eyJ"), "a JWT stands in the log");
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_an_agent_that_waits_or_finds_nobody() -> Result<()> {
    let site = Site::new().await?;
    let nobody = ([127, 0, 0, 1], free_port()?).into();
    let installed = Installed::new(&site, 1, &[nobody], "")?;
    let mut agent = AgentProcess::start(&installed, &["run"])?;
    installed
        .status_becomes("it has tried", |status| status.connection.error.is_some())
        .await?;
    agent.stop().await
}

#[tokio::test]
async fn a_second_agent_on_one_folder_is_refused() -> Result<()> {
    let site = Site::new().await?;
    let nobody = ([127, 0, 0, 1], free_port()?).into();
    let installed = Installed::new(&site, 1, &[nobody], "")?;
    let mut first = AgentProcess::start(&installed, &["run"])?;
    installed.status_becomes("it runs", |_| true).await?;
    let second = AgentProcess::run(&installed, &["run"]).await?;
    ensure!(second.code == Some(1), "{second:?}");
    ensure!(
        second.stderr.contains("in use by another svc-agent"),
        "{second:?}"
    );
    first.stop().await
}

#[tokio::test]
async fn status_says_where_the_agent_stands_whether_or_not_it_runs() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let before = AgentProcess::run(&installed, &["status"]).await?;
    ensure!(
        before.code == Some(1) && before.stdout.contains("nothing is known here yet"),
        "{before:?}"
    );

    let mut agent = AgentProcess::start(&installed, &["run"])?;
    installed
        .status_becomes("a sample is safe", |status| status.spool.acked_seq > 0)
        .await?;
    let running = AgentProcess::run(&installed, &["status"]).await?;
    let id = agent_id(&site).await?;
    for wanted in [
        "running, process",
        "connected to 127.0.0.1",
        "active",
        id.as_str(),
    ] {
        ensure!(
            running.stdout.contains(wanted),
            "{wanted}: {}",
            running.stdout
        );
    }
    let told = AgentProcess::run(&installed, &["status", "--output", "json"]).await?;
    let told: Value = serde_json::from_str(&told.stdout)?;
    ensure!(
        told["running"] == true && told["status"]["enrolment"] == "active",
        "{told}"
    );
    ensure!(!told.to_string().contains("eyJ"), "the JWT is shown");

    agent.stop().await?;
    let after = AgentProcess::run(&installed, &["status"]).await?;
    ensure!(
        after.code == Some(1) && after.stdout.contains("not running"),
        "{after:?}"
    );
    ensure!(after.stdout.contains(&id), "{after:?}");
    Ok(())
}

#[tokio::test]
async fn check_finds_what_would_go_wrong_and_changes_nothing() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let secret = token(&site, AUTO).await?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let good = AgentProcess::run(&installed, &["check"]).await?;
    ensure!(
        good.code == Some(0) && !good.stdout.contains("FAIL"),
        "{good:?}"
    );
    ensure!(
        good.stdout.contains("it answers") && good.stdout.contains("clock"),
        "{good:?}"
    );
    ensure!(!installed.path().exists(), "it made the folder");
    ensure!(site.psql("SELECT count(*) FROM agents").await? == "0");

    installed.ca_cert_file = site.path("none.crt");
    installed
        .addresses
        .push(([127, 0, 0, 1], free_port()?).into());
    let bad = AgentProcess::run(&installed, &["check"]).await?;
    ensure!(
        bad.code == Some(1) && bad.stdout.contains("ca_cert_file"),
        "{bad:?}"
    );
    let nothing = AgentProcess::run(&installed, &["check", "--ingest-address", "a:b"]).await?;
    ensure!(
        nothing.code == Some(2) && nothing.stdout.contains("--ingest-address"),
        "{nothing:?}"
    );
    Ok(())
}

#[tokio::test]
async fn check_does_not_disturb_a_running_agent() -> Result<()> {
    let site = Site::new().await?;
    let service = site.instance().start().await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let mut agent = AgentProcess::start(&installed, &["run"])?;
    becomes(&site, "SELECT presence, epoch FROM agent_state", "online|1").await?;
    let good = AgentProcess::run(&installed, &["check"]).await?;
    ensure!(good.code == Some(0), "{good:?}");
    ensure!(good.stdout.contains("in use by process"), "{good:?}");
    ensure!(site.psql("SELECT presence, epoch FROM agent_state").await? == "online|1");
    agent.stop().await
}

#[tokio::test]
async fn sample_prints_the_machine() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::new(&site, 1, &[], "")?;
    let table = AgentProcess::run(&installed, &["sample"]).await?;
    ensure!(table.code == Some(0), "{table:?}");
    for name in ["cpu", "load", "memory", "up for", "processes"] {
        ensure!(table.stdout.contains(name), "{}", table.stdout);
    }
    let json = AgentProcess::run(&installed, &["sample", "--output", "json"]).await?;
    let json: Value = serde_json::from_str(&json.stdout)?;
    let memory = json["memory_total_bytes"].as_u64().context("a number")?;
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let total: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .context("MemTotal")?
        .trim()
        .parse()?;
    ensure!(memory == total * 1024);
    Ok(())
}

#[tokio::test]
async fn problems_of_the_configuration_are_exit_code_2() -> Result<()> {
    let site = Site::new().await?;
    let installed = Installed::new(&site, 1, &[], "")?;
    let refused = AgentProcess::run(&installed, &["--log", "loud", "--spool-age", "never"]).await?;
    ensure!(refused.code == Some(2), "{refused:?}");
    for name in ["ingest_address", "--log", "--spool-age"] {
        ensure!(refused.stderr.contains(name), "{refused:?}");
    }
    Ok(())
}
