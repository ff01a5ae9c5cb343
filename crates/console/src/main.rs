//! `svc-console`: the web console and its commands in one binary.

use std::process::ExitCode;

/// A console runs for months. A background thread of jemalloc returns freed memory to the system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    svc_console::cli::run().await
}
