//! `svc-ingest`: the service and its admin commands in one binary.

use std::process::ExitCode;

/// Memory per connection limits an instance, so fragmentation matters. A background thread of jemalloc returns freed
/// memory to the system even while the process is idle.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    svc_admin::cli::run().await
}
