//! One part of an installation, and whether `init` made it or found it.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Done {
    Made,
    Kept,
}

/// One part of the installation.
#[derive(Debug, Serialize)]
pub struct Step {
    pub done: Done,
    pub subject: &'static str,
    pub detail: String,
}

impl Step {
    pub fn made(subject: &'static str, detail: impl Into<String>) -> Self {
        Self {
            done: Done::Made,
            subject,
            detail: detail.into(),
        }
    }

    pub fn kept(subject: &'static str, detail: impl Into<String>) -> Self {
        Self {
            done: Done::Kept,
            subject,
            detail: detail.into(),
        }
    }

    /// This step with another subject.
    pub fn about(self, subject: &'static str) -> Self {
        Self { subject, ..self }
    }
}
