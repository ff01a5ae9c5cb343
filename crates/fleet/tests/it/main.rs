//! The program from outside: scenarios on a system of their own, and runs that are refused or fail.
//!
//! They need the binary of the service, which `cargo test --workspace` and `make test` build.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use svc_fleet::lab::{Lab, Settings};
use svc_harness::{SampleWriter, Tables};

/// Runs the program to its end.
fn fleet(arguments: &[&str]) -> anyhow::Result<Output> {
    Ok(command(arguments).output()?)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("600").arg(env!("CARGO_BIN_EXE_svc-fleet"));
    command.args(arguments).stdin(Stdio::null());
    command
        .env_remove("DATABASE_URL")
        .env_remove("SVC_FLEET_TOKEN");
    command
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

fn scenario_holds(name: &str) -> anyhow::Result<()> {
    let output = fleet(&["scenario", name, "--agents", "20", "--brief"])?;
    let shown = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("went offline 0 "), "{shown}");
    assert!(!shown.contains("FAIL"), "{shown}");
    Ok(())
}

#[test]
fn the_books_of_a_steady_fleet_balance() -> anyhow::Result<()> {
    scenario_holds("steady")
}

#[test]
fn a_site_whose_instances_all_end_starts_again() -> anyhow::Result<()> {
    scenario_holds("restart-all")
}

#[test]
fn a_site_whose_only_instance_ends_starts_again() -> anyhow::Result<()> {
    scenario_holds("restart")
}

/// At full length: what may be swept after a restart is swept before the end.
#[test]
#[ignore = "long: run by make chaos"]
fn nobody_is_offline_when_the_graces_after_a_restart_have_ended() -> anyhow::Result<()> {
    for name in ["restart", "restart-all"] {
        let shown = shown(&fleet(&["scenario", name])?);
        assert!(shown.contains("killed: went offline 0 "), "{shown}");
        assert!(!shown.contains("FAIL"), "{shown}");
    }
    Ok(())
}

async fn lab() -> anyhow::Result<Lab> {
    Lab::start(Settings {
        instances: 1,
        interval: Duration::from_secs(1),
        durable: false,
    })
    .await
}

/// The first run registers its agents; the second continues with their state.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_run_continues_with_the_same_agents() -> anyhow::Result<()> {
    let lab = lab().await?;
    let folder = tempfile::tempdir()?;
    let first = run_against(&lab, folder.path()).await?;
    assert_eq!(first["counts"]["registered"], 5, "{first}");
    assert!(first["service"]["transactions_per_report"].as_f64() > Some(0.0));
    let second = run_against(&lab, folder.path()).await?;
    assert_eq!(second["counts"]["registered"], 0, "{second}");
    assert_eq!(lab.number("SELECT count(*) FROM agents").await?, 5);
    let stored = lab.number("SELECT count(*) FROM host_metrics").await?;
    assert_eq!(second["books"]["tables"]["stored"], stored);
    Ok(())
}

/// The baseline of the benchmark is worth something only if it stores what the service stores.
#[tokio::test(flavor = "multi_thread")]
async fn the_bare_loop_continues_the_books_of_the_fleet() -> anyhow::Result<()> {
    let lab = lab().await?;
    let folder = tempfile::tempdir()?;
    run_against(&lab, folder.path()).await?;
    let url = lab.database_url();
    let before = Tables::of(&url).await?;
    let mut writer = SampleWriter::open(&url, 2).await?;
    let now = Timestamp::now();
    let times = [now - SignedDuration::from_secs(30), now];
    for agents in [0..3, 3..5, 0..3] {
        writer.append(agents, &times).await?;
    }
    let after = Tables::of(&url).await?;
    assert_eq!((after.faults(), after.stored), (0, before.stored + 16));
    Ok(())
}

/// Runs a small fleet whose books must balance, and returns its report.
async fn run_against(lab: &Lab, folder: &Path) -> anyhow::Result<serde_json::Value> {
    let (target, http) = (
        lab.targets()[0].to_string(),
        lab.instances[0].http.to_string(),
    );
    let (url, json, state) = (
        lab.database_url(),
        folder.join("run.json"),
        folder.join("state"),
    );
    let files = [json.to_string_lossy(), state.to_string_lossy()];
    let small = ["--agents", "5", "--ramp", "0s", "--duration", "3s"];
    let places = ["--target", &target, "--http", &http, "--database-url", &url];
    let kept = ["--json", &files[0], "--state", &files[1]];
    let arguments = [&["run"], &places[..], &small, &kept].concat();
    let output = tokio::task::block_in_place(|| fleet(&arguments))?;
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    Ok(serde_json::from_slice(&std::fs::read(json)?)?)
}

#[test]
fn a_remote_target_is_refused() -> anyhow::Result<()> {
    let elsewhere = ["run", "--target", "192.0.2.1:9443", "--token", "none"];
    let output = fleet(&elsewhere)?;
    assert_eq!(output.status.code(), Some(2));
    assert!(shown(&output).contains("--i-own-this-target"));
    let owned = [&elsewhere[..], &["--i-own-this-target"]].concat();
    let output = fleet(&owned)?;
    assert_eq!(output.status.code(), Some(2));
    assert!(shown(&output).contains("--ca-cert"));
    Ok(())
}

#[test]
fn a_run_without_a_service_ends_by_itself_and_fails() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("report.json");
    let report = json.to_string_lossy();
    let nobody = ["run", "--target", "127.0.0.1:1", "--token", "none"];
    let small = [
        "--agents",
        "3",
        "--ramp",
        "0s",
        "--duration",
        "2s",
        "--json",
    ];
    let output = fleet(&[&nobody[..], &small, &[&report]].concat())?;
    let shown = shown(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("unreachable"), "{shown}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json)?)?;
    assert_eq!(report["books"]["agents"], 3);
    assert_eq!(report["counts"]["connected"], 0);
    Ok(())
}
