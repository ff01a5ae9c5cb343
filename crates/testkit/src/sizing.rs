//! The memory of an instance as docs/sizing.md has it.

const MIB: u64 = 1 << 20;

/// Without agents.
const BASE: u64 = 24 * MIB;
/// Of a connected agent whose report waits to be read.
const AGENT: u64 = 96 << 10;
/// The in-process queue, the report budget (reading, large and small reports), and what storing a backlog takes.
const REPORTS: u64 = (64 + 32 + 32 + 8 + 80) * MIB;

/// The most memory that an instance with so many agents takes.
pub fn documented_memory(agents: u64) -> u64 {
    BASE + AGENT * agents + REPORTS
}
