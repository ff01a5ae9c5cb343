//! What an agent reports about its machine and itself. The caller normalises and bounds it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text_enum::text_enum;

text_enum! {
    /// Kinds of identifiers that machines are recognised by, strongest first, also by `Ord` and in `ALL`.
    #[derive(Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum IdentifierKind {
        Cloud = "cloud",
        Hardware = "hardware",
        Machine = "machine",
        Network = "network",
    }
}

/// The identifiers of one machine. A kind without values is left out.
pub type Identifiers = BTreeMap<IdentifierKind, Vec<String>>;

/// Facts about a machine. Serialised, they are the column `agents.facts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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

/// Facts about the agent program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    pub version: String,
    pub capabilities: Vec<String>,
}
