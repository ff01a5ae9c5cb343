//! Whom a failed statement speaks against: the data that it carried, or everything else.
//!
//! Only the data's own fault may ever be held against a sample, and the default is
//! not to: a column that is missing, a right that was revoked or an error that
//! nobody has thought of says nothing about the one sample that met it first.

use crate::error::StoreError;

impl StoreError {
    /// True where the same data would be refused by a database in perfect health.
    pub fn is_data_error(&self) -> bool {
        match self {
            StoreError::Query(_) => self.sqlstate().is_none_or(is_about_data),
            StoreError::Unavailable { .. } | StoreError::Conflict(_) | StoreError::Schema(_) => {
                false
            }
        }
    }
}

/// Classes 22 (data exception), 23 (integrity constraint), 54 (beyond a limit of the
/// program), and P0 (raised by a function or trigger). Without a state the driver
/// could not even encode the value.
fn is_about_data(code: &str) -> bool {
    matches!(code.get(..2), Some("22" | "23" | "54" | "P0"))
}

#[cfg(test)]
mod tests {
    use super::is_about_data;

    #[test]
    fn a_schema_or_a_right_that_is_missing_is_nobodys_data() {
        for code in ["42P01", "42703", "42501", "0A000", "XX000", "26000", ""] {
            assert!(!is_about_data(code), "{code}");
        }
        for code in ["22021", "22003", "23514", "23502", "54000", "P0001"] {
            assert!(is_about_data(code), "{code}");
        }
    }
}
