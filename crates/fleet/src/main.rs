//! `svc-fleet`: virtual agents, scenarios and benchmarks.

use std::process::ExitCode;

/// Tens of thousands of agents in a process: fragmentation is memory, too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    svc_fleet::cli::main()
}
