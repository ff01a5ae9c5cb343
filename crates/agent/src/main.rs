//! The `svc-agent` binary. The agent runs on one thread, and a second one for the disk.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    svc_agent::cli::run().await
}
