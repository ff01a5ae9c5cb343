//! What an agent says of its machine, normalised and bounded by the caller.

use std::collections::BTreeMap;

use serde::Serialize;

/// What machines are recognised by, weakest first, so that `Ord` is strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdentifierKind {
    Network,
    Machine,
    Hardware,
    Cloud,
}

impl IdentifierKind {
    pub const STRONGEST_FIRST: [IdentifierKind; 4] = [
        IdentifierKind::Cloud,
        IdentifierKind::Hardware,
        IdentifierKind::Machine,
        IdentifierKind::Network,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            IdentifierKind::Network => "network",
            IdentifierKind::Machine => "machine",
            IdentifierKind::Hardware => "hardware",
            IdentifierKind::Cloud => "cloud",
        }
    }
}

/// The identifiers of one machine; a kind is there only with values.
pub type Identifiers = BTreeMap<IdentifierKind, Vec<String>>;

/// Serialised, this is `agents.facts`: columns of `hosts`, and the identifiers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    pub hostname: String,
    pub os: String,
    pub os_version: String,
    pub arch: String,
    pub kernel_version: String,
    pub mac_addresses: Vec<String>,
    pub ip_addresses: Vec<String>,
    pub boot_id: String,
    pub cpu_count: i64,
    pub memory_total_bytes: i64,
    pub identifiers: Identifiers,
}

/// What an agent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    pub version: String,
    pub capabilities: Vec<String>,
}

/// Whether two sets of identifiers are of one machine: the strongest kind that
/// both carry decides, and a weaker one matters only where a side lacks the
/// stronger. `None` where they have no kind in common, so that nothing is known.
pub fn same_machine(one: &Identifiers, other: &Identifiers) -> Option<bool> {
    IdentifierKind::STRONGEST_FIRST
        .iter()
        .find_map(|kind| Some((one.get(kind)?, other.get(kind)?)))
        .map(|(one, other)| one.iter().any(|value| other.contains(value)))
}
