//! Which of the pending agents the page of approvals and its live view show.

use serde::Deserialize;
use svc_store::{AgentFilter, AgentStatus, Labels, TokenId};
use uuid::Uuid;

use crate::view::address_query;

/// The agents of a token, with a label, or all: as the address says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub token: String,
    pub label: String,
}

impl Filter {
    pub fn trimmed(&self) -> Self {
        let cut = |text: &str| text.trim().chars().take(300).collect();
        Self {
            token: cut(&self.token),
            label: cut(&self.label),
        }
    }

    /// The live view of the filtered list, as a query.
    pub fn live(&self) -> String {
        let (token, label) = (("token", &*self.token), ("label", &*self.label));
        address_query(&[("view", "approvals"), token, label])
    }

    /// `None` if it cannot be understood.
    pub fn parse(&self) -> Option<AgentFilter> {
        let mut filter = AgentFilter {
            status: Some(AgentStatus::Pending),
            ..AgentFilter::default()
        };
        if !self.token.is_empty() {
            filter.token = Some(TokenId(Uuid::parse_str(&self.token).ok()?));
        }
        if !self.label.is_empty() {
            let labels: Labels = self.label.parse().ok()?;
            filter.labels = Some(labels).filter(|labels| !labels.is_empty())?;
        }
        Some(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_not_taken_for_none() {
        let understood = |token: &str, label: &str| {
            let (token, label) = (token.into(), label.into());
            Filter { token, label }.parse().is_some()
        };
        assert!(understood("", "") && understood("", "env=prod"));
        assert!(!understood("", "env") && !understood("813cbadc", ""));
    }
}
