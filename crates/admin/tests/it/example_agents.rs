//! The example agent in Python against the service, run as examples/README.md says.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use svc_testkit::{AUTO, PATIENCE, Site, token};
use tokio::{process::Command, time::timeout};

use crate::repository;

/// Runs a program to its end, within the patience of tests.
async fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await??;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(text)
}

/// A Python with gRPC: the first of the path, or the system's.
async fn python() -> Result<&'static str> {
    for python in ["python3", "/usr/bin/python3"] {
        let imports = Command::new(python).args(["-c", "import grpc"]).output();
        if imports.await.is_ok_and(|output| output.status.success()) {
            return Ok(python);
        }
    }
    anyhow::bail!("no Python has grpcio: scripts/deps installs it")
}

/// The messages for Python, as examples/README.md makes them.
async fn generate(folder: &Path) -> Result<()> {
    let mut protoc = Command::new("protoc");
    protoc.current_dir(examples().join("python"));
    protoc.args(["-I", "../../proto", "-I", ".."]);
    protoc.arg(format!("--python_out={}", folder.display()));
    run(protoc.args(["svc/ingest/v1/ingest.proto", "refusal.proto"]))
        .await
        .context("scripts/deps installs protoc")?;
    Ok(())
}

fn examples() -> PathBuf {
    repository::path("examples")
}

#[tokio::test]
async fn the_python_agent_registers_reports_and_says_goodbye() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let process = process.start().await?;
    let messages = site.path("messages");
    std::fs::create_dir(&messages)?;
    generate(&messages).await?;
    let (python, secret) = (python().await?, token(&site, AUTO).await?);
    let agent = async |secret: &str, samples: &str| {
        let mut agent = Command::new(python);
        agent
            .env("PYTHONPATH", &messages)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        agent.arg(examples().join("python/agent.py"));
        agent.args(["--address", &format!("localhost:{}", process.grpc.port())]);
        agent.arg("--ca").arg(site.path("server.crt"));
        agent.arg("--state").arg(site.path("example"));
        run(agent.args(["--token", secret, "--samples", samples])).await
    };
    agent(&secret, "2").await?;
    let stored = "SELECT count(*) >= 2, bool_and(memory_total_bytes > 0 AND uptime_seconds > 0) FROM host_metrics";
    site.expect(stored, "t|t").await?;
    site.becomes("SELECT presence, cause FROM agent_state", "offline|goodbye")
        .await?;

    // The key is enough to come back, and the numbers go on.
    agent("", "1").await?;
    site.expect(
        "SELECT count(*) >= 3, count(*) = max(seq) FROM host_metrics",
        "t|t",
    )
    .await?;
    site.expect("SELECT count(*) FROM metric_gaps", "0").await?;
    process.stop().await
}
