//! Which pool a call takes its connection from.

/// Kinds of work that have separate connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bulkhead {
    /// Appending samples.
    Ingest,
    /// Registrations, opening and closing sessions, decisions, admin commands.
    Auth,
    /// Leases, sweeps, and polling for changes. Nothing long runs here.
    Watch,
    /// Migrations, partitions, pruning and rollups, which may take minutes.
    Maintenance,
}

impl Bulkhead {
    pub(crate) const ALL: [Bulkhead; 4] = [
        Bulkhead::Ingest,
        Bulkhead::Auth,
        Bulkhead::Watch,
        Bulkhead::Maintenance,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Bulkhead::Ingest => "ingest",
            Bulkhead::Auth => "auth",
            Bulkhead::Watch => "watch",
            Bulkhead::Maintenance => "maintenance",
        }
    }

    /// This bulkhead's part of `total`. Maintenance is two tasks at most: rollups and the rest.
    pub(crate) fn share(self, total: usize) -> usize {
        let auth = (total * 5 / 16).max(1);
        let watch = (total * 3 / 16).max(1);
        let maintenance = (total / 8).clamp(1, 2);
        match self {
            Bulkhead::Ingest => total.saturating_sub(auth + watch + maintenance).max(1),
            Bulkhead::Auth => auth,
            Bulkhead::Watch => watch,
            Bulkhead::Maintenance => maintenance,
        }
    }
}
