//! `svc-agent`: the host agent and its few commands, on one thread.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    svc_agent::cli::run().await
}
