//! The svc-ingest binary: its path and its admin commands.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::{process::Command, time::timeout};

const VARIABLE: &str = "SVC_INGEST_BIN";
const TIMEOUT: Duration = Duration::from_secs(30);

const TOKEN_CREATE: &str =
    "token create --auto-approve --label svc-fleet --expires-in 1d --output json --max-uses";

/// The path in the variable, or beside this program. (A test binary is one folder further down.)
pub fn path() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(PathBuf::from(named));
    }
    let own = std::env::current_exe().context("the path of this program")?;
    let beside = own.ancestors().skip(1).take(2);
    let mut beside = beside.map(|folder| folder.join("svc-ingest"));
    beside.find(|path| path.is_file()).with_context(|| {
        format!(
            "svc-ingest is not beside {}: build it (cargo build -p svc-ingest), or set {VARIABLE}",
            own.display()
        )
    })
}

#[derive(Deserialize)]
struct CreatedToken {
    token: String,
}

/// Creates an auto-approving enrolment token.
pub async fn create_token(database_url: &str, uses: u32) -> anyhow::Result<String> {
    let mut command = Command::new(path()?);
    command.args(TOKEN_CREATE.split(' ')).arg(uses.to_string());
    command.env("DATABASE_URL", database_url);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(TIMEOUT, command.output()).await??;
    if !output.status.success() {
        bail!(
            "svc-ingest token create: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let created: CreatedToken =
        serde_json::from_slice(&output.stdout).context("svc-ingest token create")?;
    Ok(created.token)
}
