//! The `svc-agent` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    svc_agent::cli::run()
}
