//! The service's binary: where it is, and its admin commands.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::{process::Command, time::timeout};

const VARIABLE: &str = "SVC_INGEST_BIN";
const PATIENCE: Duration = Duration::from_secs(30);

/// Named by a variable, or beside this program (a test's program is one folder further down).
pub fn program() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(named));
    }
    let own = std::env::current_exe().context("this program's own path")?;
    let beside = own.ancestors().skip(1).take(2);
    let mut beside = beside.map(|folder| folder.join("svc-ingest"));
    beside.find(|path| path.is_file()).with_context(|| {
        format!("svc-ingest is not beside {}: build it (cargo build -p svc-ingest), or name it in {VARIABLE}", own.display())
    })
}

#[derive(Deserialize)]
struct Made {
    token: String,
}

/// Makes a token that approves by itself.
pub async fn token(database_url: &str, uses: u32) -> anyhow::Result<String> {
    let uses = uses.to_string();
    let arguments = [
        "token",
        "create",
        "--label",
        "svc-fleet",
        "--auto-approve",
        "--expires-in",
        "1d",
        "--max-uses",
        &uses,
        "--output",
        "json",
    ];
    let mut command = Command::new(program()?);
    command.args(arguments).env("DATABASE_URL", database_url);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await??;
    if !output.status.success() {
        bail!(
            "svc-ingest token create: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let made: Made = serde_json::from_slice(&output.stdout).context("svc-ingest token create")?;
    Ok(made.token)
}
