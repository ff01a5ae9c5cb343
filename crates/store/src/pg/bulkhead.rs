//! Which pool a call takes its connection from.

use crate::values::text_enum::text_enum;

text_enum! {
    /// Kinds of work that have separate connections.
    pub enum Bulkhead {
        /// Appending samples.
        Ingest = "ingest",
        /// Registrations, opening and closing sessions, decisions, admin commands.
        Auth = "auth",
        /// Leases, sweeps, and polling for changes. Nothing long runs here.
        Watch = "watch",
        /// Migrations, partitions, pruning and rollups, which may take minutes.
        Maintenance = "maintenance",
    }
}

impl Bulkhead {
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
