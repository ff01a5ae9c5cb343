//! Problems of the configuration: one line each, reported together.

use std::fmt;

/// One problem, with the variable that an administrator has to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {message}")]
pub struct Problem {
    pub variable: &'static str,
    pub message: String,
}

/// One or more problems. A command that ends with them exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(variable: &'static str, message: impl fmt::Display) -> Self {
        Self(vec![Problem {
            variable,
            message: message.to_string(),
        }])
    }
}
