//! The views that can be live, and what each of them shows.

use svc_store::Role;
use uuid::Uuid;

use crate::{
    app::App,
    auth::User,
    error::AppError,
    pages::{self, approvals::Filter},
};

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
    pub fn parse(name: &str, ids: &str, filter: Filter, user: &User) -> Option<Self> {
        let mut parsed = ids.split(',').map(|id| Uuid::parse_str(id).ok());
        match name {
            "fleet" => Some(Self::Fleet),
            "approvals" => Some(Self::Approvals(user.role, filter.trimmed())),
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

    pub async fn render(&self, app: &App) -> Result<String, AppError> {
        match self {
            Self::Fleet => pages::fleet::part(app).await,
            Self::Approvals(role, filter) => pages::approvals::part(app, *role, filter).await,
            Self::Hosts(ids) => pages::hosts::rows(app, ids).await,
            Self::Host(id) => pages::host::part(app, *id).await,
            Self::Service => pages::service::part(app).await,
        }
    }
}
