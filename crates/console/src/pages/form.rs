//! Forms with repeated fields, and the bounds of what people type.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
};
use svc_store::LabelChange;
use url::form_urlencoded;
use uuid::Uuid;

use crate::error::AppError;

const REASON_BYTES: usize = 500;

/// The fields of a form in their order.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = BytesRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, BytesRejection> {
        let body = Bytes::from_request(request, state).await?;
        Ok(Self::parse(&body))
    }
}

impl Fields {
    fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.trim())
    }

    /// All values of a field that are ids.
    pub fn ids(&self, name: &str) -> Vec<Uuid> {
        let values = self.0.iter().filter(|(known, _)| known == name);
        let mut ids: Vec<Uuid> = values
            .filter_map(|(_, value)| Uuid::parse_str(value).ok())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    pub fn labels(&self) -> Result<LabelChange, AppError> {
        labels(self.get("labels"))
    }

    /// The reason of a decision, if one was given.
    pub fn reason(&self) -> Result<Option<String>, AppError> {
        self.text("reason", REASON_BYTES, "The reason")
    }

    /// A text of a person: printable, bounded, or none.
    pub fn text(&self, name: &str, most: usize, what: &str) -> Result<Option<String>, AppError> {
        let text = self.get(name);
        if text.len() > most || text.chars().any(char::is_control) {
            let message = format!("{what} is longer than {most} bytes, or has control characters.");
            return Err(AppError::BadRequest(message));
        }
        Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
    }
}

/// Labels as people write them: `env=prod, team=web`. A name with a minus in front is removed.
fn labels(text: &str) -> Result<LabelChange, AppError> {
    let form = "Write labels as name=value, separated by commas; -name removes one.";
    let wrong = || AppError::bad_request(form);
    let mut change = LabelChange::default();
    let parts = text.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let plain = part.chars().all(|letter| !letter.is_control());
        match (part.strip_prefix('-'), part.split_once('=')) {
            _ if !plain => return Err(wrong()),
            (Some(name), None) if !name.is_empty() => change.removed.push(name.into()),
            (None, Some((name, value))) if !name.trim().is_empty() => {
                change.added.insert(name.trim().into(), value.trim().into());
            }
            _ => return Err(wrong()),
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_added_and_removed() {
        let change = labels("env=prod, team=web ops, -old").unwrap();
        assert_eq!(
            change.added.get("team").map(String::as_str),
            Some("web ops")
        );
        assert_eq!(change.removed, ["old"]);
        for wrong in ["env", "=x", "-", "a=b\u{7}"] {
            assert!(labels(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn repeated_ids_are_taken_once() {
        let id = "a0000000-0000-4000-8000-000000000001";
        let body = format!("id={id}&id=x&id={id}&reason=+why+");
        let fields = Fields::parse(body.as_bytes());
        assert_eq!(fields.ids("id").len(), 1);
        assert_eq!(fields.reason().unwrap().as_deref(), Some("why"));
    }
}
