//! `svc-ingest`: one binary for the service and its administration.

use std::process::ExitCode;

/// Per-connection memory is what limits an instance, and fragmentation with it. A thread of the
/// allocator gives back what a crowd has left, also while nothing else happens.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    svc_ingest::cli::run().await
}
