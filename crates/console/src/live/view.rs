//! The views that can be live.

use svc_store::Role;
use uuid::Uuid;

use super::filter::Filter;

/// How many rows of a list can be live: a page of it.
const MAX_ROWS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum View {
    Fleet,
    /// Operators see buttons that viewers do not.
    Approvals(Role, Filter),
    /// These rows of the list, whatever filter found them. New hosts do not push them away.
    Hosts(Vec<Uuid>),
    Host(Uuid),
    Service,
}

impl View {
    pub fn parse(name: &str, ids: &str, filter: &Filter, role: Role) -> Option<Self> {
        let mut parsed = ids.split(',').map(|id| Uuid::parse_str(id).ok());
        match name {
            "fleet" => Some(Self::Fleet),
            "approvals" => Some(Self::Approvals(role, filter.trimmed())),
            "service" => Some(Self::Service),
            "host" => parsed.next().flatten().map(Self::Host),
            "hosts" => {
                let ids: Option<Vec<Uuid>> = parsed.take(MAX_ROWS + 1).collect();
                ids.filter(|ids| ids.len() <= MAX_ROWS).map(Self::Hosts)
            }
            _ => None,
        }
    }

    /// Whether new registrations and decisions change it.
    pub fn follows_news(&self) -> bool {
        matches!(self, Self::Fleet | Self::Approvals(..))
    }
}
