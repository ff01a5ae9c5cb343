//! The orders of a list of hosts, as SQL.

use crate::values::text_enum::text_enum;

text_enum! {
    #[derive(Default, Hash)]
    pub enum HostSort {
        #[default]
        Name = "name",
        /// The fullest disk first.
        Disk = "disk",
        /// The longest offline first; only hosts whose agent is offline.
        Offline = "offline",
    }
}

impl HostSort {
    /// The tables to read, with the condition that the order itself makes.
    pub(super) fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::Name => ("hosts h", "true"),
            Self::Disk => ("host_vitals v JOIN hosts h ON h.id = v.host_id", "true"),
            Self::Offline => (
                "agent_state s JOIN agents a ON a.id = s.agent_id AND a.status = 'active' JOIN hosts h ON h.id = a.host_id",
                "s.presence = 'offline'",
            ),
        }
    }

    /// The order in which hosts are counted: one that has the same hosts and is read faster. Every host has a row of vitals, so
    /// the order by disks has the same hosts as the order by names.
    pub(super) fn counted(self) -> Self {
        match self {
            Self::Disk => Self::Name,
            Self::Name | Self::Offline => self,
        }
    }

    /// The value to sort by, its direction, and the id that decides between equal values. There is an index on each pair,
    /// because many rows may have one value: those of a whole fleet that went offline at once.
    pub(super) fn order(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Name => ("h.hostname", "", "h.id"),
            Self::Disk => ("v.fullest_disk_percent", "DESC NULLS LAST", "v.host_id"),
            Self::Offline => ("s.presence_since", "", "s.agent_id"),
        }
    }

    /// The directions of the value and of the id, from the first host or from the last one.
    pub(super) fn directions(self, backwards: bool) -> (&'static str, &'static str) {
        match (self, backwards) {
            (_, false) => (self.order().1, ""),
            (Self::Disk, true) => ("ASC NULLS FIRST", "DESC"),
            (_, true) => ("DESC", "DESC"),
        }
    }

    /// The sort key as text.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Name => "h.sort_value",
            Self::Disk => "coalesce(h.sort_value, -1)::text",
            Self::Offline => "coalesce(extract(epoch FROM h.sort_value), 0)::text",
        }
    }

    /// The condition on the rows behind the key `last` and the id `id`, or before them.
    pub(super) fn after(
        self,
        (value, tie): (&str, &str),
        (last, id): (&str, &str),
        backwards: bool,
    ) -> String {
        let (behind, below) = if backwards { ("<", ">") } else { (">", "<") };
        match self {
            Self::Name => format!("({value}, {tie}) {behind} ({last}, {id})"),
            Self::Disk => format!(
                "(coalesce({value}, -1) {below} {last}::int OR coalesce({value}, -1) = {last}::int AND {tie} {behind} {id})"
            ),
            Self::Offline => {
                format!("({value}, {tie}) {behind} (to_timestamp({last}::float8), {id})")
            }
        }
    }
}
