//! Problems of the configuration: one line each, reported together.

use std::fmt;

/// One problem, with the variable that an administrator has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub variable: &'static str,
    pub message: String,
}

/// One or more problems. A command that ends with them exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(variable: &'static str, message: impl fmt::Display) -> Self {
        Self(vec![Problem {
            variable,
            message: message.to_string(),
        }])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.message)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
