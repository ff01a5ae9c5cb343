//! Which of the pending agents the page of approvals and its live view show.

use serde::Deserialize;
use svc_store::{AgentFilter, AgentStatus, Labels, TokenId};
use uuid::Uuid;

use crate::{form::Fields, view::address_query};

/// The agents of a token, with a label, or all: as the address says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub token: String,
    pub label: String,
    /// What the fingerprint of the agent's key begins with.
    pub key: String,
}

impl Filter {
    /// As the hidden fields of a form have it.
    pub fn of(fields: &Fields) -> Self {
        let field = |name| fields.get(name).to_owned();
        let filter = Self {
            token: field("token"),
            label: field("label"),
            key: field("key"),
        };
        filter.trimmed()
    }

    pub fn trimmed(&self) -> Self {
        let cut = |text: &str| text.trim().chars().take(300).collect();
        Self {
            token: cut(&self.token),
            label: cut(&self.label),
            key: cut(&self.key),
        }
    }

    /// The live view of the filtered list, as a query.
    pub fn live(&self) -> String {
        let fields = self.fields();
        let fields = std::iter::once(("view", "approvals")).chain(fields);
        address_query(&fields.collect::<Vec<_>>())
    }

    /// As fields of an address or a form.
    pub fn fields(&self) -> [(&'static str, &str); 3] {
        [
            ("token", self.token.as_str()),
            ("label", self.label.as_str()),
            ("key", self.key.as_str()),
        ]
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
        if !self.key.is_empty() {
            filter.key = Some(self.key.parse().ok()?);
        }
        Some(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_not_taken_for_none() {
        let understood = |token: &str, label: &str, key: &str| {
            let (token, label, key) = (token.into(), label.into(), key.into());
            Filter { token, label, key }.parse().is_some()
        };
        assert!(understood("", "", "") && understood("", "env=prod", "3f2a 91b0"));
        assert!(!understood("", "env", "") && !understood("813cbadc", "", ""));
        assert!(!understood("", "", "web-1"));
    }
}
