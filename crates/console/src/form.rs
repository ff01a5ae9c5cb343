//! Forms with repeated fields, and the bounds of what people type.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::Method,
};
use svc_common::text::is_hidden;
use svc_store::{LabelChange, LabelsError};
use url::form_urlencoded;
use uuid::Uuid;

use crate::error::AppError;

/// An id, and for an agent the hash of what was shown.
pub type Picked = (Uuid, Option<String>);

const REASON_BYTES: usize = 500;

/// The fields of a form in their order: of the body, or of the address of a form that only asks.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = BytesRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, BytesRejection> {
        if request.method() == Method::GET {
            let query = request.uri().query().unwrap_or_default();
            return Ok(Self::parse(query.as_bytes()));
        }
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

    /// Ids with the hash of what was shown of each: `id~hash`. Without a hash nothing was shown, and none fits.
    pub fn picked(&self, name: &str) -> Vec<Picked> {
        let values = self.0.iter().filter(|(known, _)| known == name);
        let mut picked: Vec<Picked> = values
            .filter_map(|(_, value)| {
                let (id, seen) = value.split_once('~').unwrap_or((value.as_str(), ""));
                Some((Uuid::parse_str(id).ok()?, Some(seen.to_owned())))
            })
            .collect();
        picked.sort_unstable();
        picked.dedup_by_key(|(id, _)| *id);
        picked
    }

    /// Labels as people write them: `env=prod, -old`. The form behind a preview has them as they were shown.
    pub fn labels(&self) -> Result<LabelChange, AppError> {
        let labels = self.get("labels");
        if labels.contains(is_hidden) {
            return Err(AppError::bad_request(
                "Labels have no invisible characters.",
            ));
        }
        let change = labels.parse();
        change.map_err(|problem: LabelsError| {
            AppError::BadRequest(format!("These labels are not accepted: {problem}."))
        })
    }

    /// The reason of a decision, if one was given.
    pub fn reason(&self) -> Result<Option<String>, AppError> {
        self.text("reason", REASON_BYTES, "The reason")
    }

    /// The reason of a decision that needs one.
    pub fn required_reason(&self) -> Result<String, AppError> {
        self.reason()?
            .ok_or_else(|| AppError::bad_request("Give a reason: it is kept with the change."))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_ids_are_taken_once() {
        let id = "a0000000-0000-4000-8000-000000000001";
        let body = format!("id={id}&id=x&id={id}&reason=+why+");
        let fields = Fields::parse(body.as_bytes());
        assert_eq!(fields.ids("id").len(), 1);
        assert_eq!(fields.reason().unwrap().as_deref(), Some("why"));
    }
}
