//! The memory of an instance as docs/sizing.md has it.

const MIB: u64 = 1 << 20;

/// Without agents.
const BASE: u64 = 24 * MIB;
/// Of a connected agent whose report waits to be read.
const AGENT: u64 = 96 << 10;
/// The in-process queue, the report budget (reading, large and small reports), and what storing a backlog takes.
const REPORTS: u64 = (64 + 32 + 32 + 8 + 80) * MIB;

/// Of a connection that has proven nothing.
const STRANGER: u64 = 256 << 10;
/// The room for large messages of such connections.
const OPENING: u64 = 16 * MIB;

/// The most memory that so many connections take that have proven nothing.
pub fn documented_strangers(connections: u64) -> u64 {
    OPENING + STRANGER * connections
}

/// The most memory that an instance with so many agents takes.
pub fn documented_memory(agents: u64) -> u64 {
    BASE + AGENT * agents + REPORTS
}
