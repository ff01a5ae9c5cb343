//! The programs in the folder of this one, as child processes that end with it.

use std::{
    env,
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use tokio::task::spawn_blocking;

/// `None` where the program is missing.
pub fn beside(name: &str) -> anyhow::Result<Option<PathBuf>> {
    let program = env::current_exe()?.with_file_name(name);
    Ok(program.is_file().then_some(program))
}

/// Runs a command to its end and returns what it printed. The error is its complaint.
pub async fn output(mut command: Command) -> anyhow::Result<String> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = svc_sandbox::spawn(command)?;
    let output = spawn_blocking(move || child.wait_with_output()).await??;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", complaint.trim_end());
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// Opens a log file, to which this start adds.
pub fn log(file: &Path) -> anyhow::Result<File> {
    let log = OpenOptions::new().create(true).append(true).open(file);
    log.with_context(|| file.display().to_string())
}
