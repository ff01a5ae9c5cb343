//! `svc-fleet`: virtual agents, scenarios and benchmarks.

use std::process::ExitCode;

/// jemalloc, because fragmentation counts with tens of thousands of agents in a process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    svc_fleet::cli::main()
}
