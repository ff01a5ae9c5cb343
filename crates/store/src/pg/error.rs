//! Errors of the database, classified by what the caller does about them.
//!
//! - `Unavailable`: the data are not at fault. Wait and repeat the call. Timeouts and a lack
//!   of resources belong here, because a slow or full database must never look like bad data.
//! - `Conflict`: all attempts collided with other transactions.
//! - `Schema`: an operator must act.
//! - `Damaged`: stored history that this program cannot have written, or whose computation panicked.
//! - `Query`: a defect of the program, or a rule of the schema, which `constraint()` and
//!   `sqlstate()` name.

use std::{error::Error, io};

use tokio_postgres::error::{DbError, SqlState};

use crate::history::Damaged;

/// The result of a call, which fails by a [`StoreError`] unless another error is named.
pub(crate) type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the database is unavailable: {reason}")]
    Unavailable {
        reason: Unavailability,
        #[source]
        source: Option<tokio_postgres::Error>,
    },
    /// Detected by PostgreSQL, or by a statement that found its row changed.
    #[error("the transaction conflicted with others in every attempt")]
    Conflict(#[source] Option<tokio_postgres::Error>),
    #[error("the database schema does not match this program")]
    Schema(#[source] SchemaError),
    #[error("the database rejected a statement")]
    Query(#[source] tokio_postgres::Error),
    #[error("history cannot be computed: {0}")]
    Damaged(String),
}

/// Why the database cannot be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    #[error("no connection could be opened")]
    Connect,
    #[error("no connection of the pool became free in time")]
    PoolBusy,
    #[error("the server did not answer in time")]
    Deadline,
    #[error("the connection was lost")]
    ConnectionLost,
    #[error("the server does not accept the work now")]
    Refused,
    #[error("another transaction has locked a row for long")]
    Locked,
    /// The transaction is visible on the server, and may be lost with it.
    #[error("the commit stopped waiting for the standby")]
    Unreplicated,
    /// Another server was promoted since, and this one goes on as if it were still the primary.
    #[error("the server was replaced by one that was promoted later")]
    Replaced,
}

/// Our SQL functions or triggers rejected a decision. The message is for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection<'a> {
    pub kind: RejectionKind,
    pub message: &'a str,
    pub hint: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionKind {
    /// SV400: the arguments are invalid.
    Malformed,
    /// SV404: the named object does not exist.
    NotFound,
    /// SV409: the current state does not allow the change.
    Conflict,
    /// SV410: the host has an active agent, and the call does not say what becomes of it.
    ModeMissing,
}

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("migration {migration} was changed after it was applied")]
    Altered { migration: String },
    #[error(
        "the database was made by an unreleased version, whose data this one cannot use: name a new database, or drop its schema"
    )]
    Unreleased,
    #[error("migration {migration} failed")]
    Failed {
        migration: String,
        #[source]
        source: tokio_postgres::Error,
    },
}

/// How many bytes of a message from the server are kept.
const MAX_MESSAGE_BYTES: usize = 500;

fn one_line(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_MESSAGE_BYTES);
    text[..end].replace(char::is_control, " ")
}

impl StoreError {
    pub(crate) fn unavailable(reason: Unavailability) -> StoreError {
        StoreError::Unavailable {
            reason,
            source: None,
        }
    }

    pub(crate) fn connect(source: tokio_postgres::Error) -> StoreError {
        StoreError::Unavailable {
            reason: Unavailability::Connect,
            source: Some(source),
        }
    }

    /// Whether the server that was reached is not the primary any more, though it believes so.
    pub(crate) fn is_about_a_replaced_server(&self) -> bool {
        let replaced = |reason: &Unavailability| *reason == Unavailability::Replaced;
        matches!(self, StoreError::Unavailable { reason, .. } if replaced(reason))
    }

    /// Whether the same call may succeed later without any change.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// Whether the database may be well, but all connections to it were in use.
    pub fn is_pool_busy(&self) -> bool {
        let busy = Unavailability::PoolBusy;
        matches!(self, StoreError::Unavailable { reason, .. } if *reason == busy)
    }

    /// Whether a healthy database would reject the same data too. Only then may a sample be
    /// discarded. Everything unknown counts as a fault of the database: a missing column or a
    /// revoked privilege says nothing about the sample that met it first.
    pub fn is_data_error(&self) -> bool {
        match self {
            StoreError::Query(_) => self.sqlstate().is_none_or(is_about_data),
            _ => false,
        }
    }

    /// Whether the work took too long, by the server's clock or by ours. Less work may succeed.
    pub fn is_timeout(&self) -> bool {
        let late = |reason: &Unavailability| *reason == Unavailability::Deadline;
        let reason = match self {
            StoreError::Unavailable { reason, .. } => Some(reason),
            _ => None,
        };
        self.sqlstate() == Some("57014") || reason.is_some_and(late)
    }

    /// Whether the work itself may have caused it, so that less work may succeed: whatever the server says about a
    /// statement or its resources, but not that the server or the connection is lost, or takes no writes.
    pub fn fewer_may_succeed(&self) -> bool {
        match self {
            StoreError::Query(_) | StoreError::Damaged(_) | StoreError::Conflict(_) => true,
            StoreError::Schema(_) => false,
            StoreError::Unavailable { reason, .. } => {
                let code = self.sqlstate().unwrap_or_default();
                let resources = matches!(code.get(..2), Some("53" | "58"));
                let refused = *reason != Unavailability::Connect && resources;
                self.is_timeout() || self.is_lock_timeout() || refused
            }
        }
    }

    /// Whether a lock was not granted in time.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.sqlstate() == Some("55P03")
    }

    /// The SQLSTATE from PostgreSQL or from one of our triggers.
    pub fn sqlstate(&self) -> Option<&str> {
        self.postgres()?.code().map(SqlState::code)
    }

    /// The name of the violated constraint.
    pub fn constraint(&self) -> Option<&str> {
        self.postgres()?.as_db_error()?.constraint()
    }

    /// The server's own message, without our context. A trigger, an extension or the name of a constraint may put any
    /// text into it, of any length: it is one short line from here on.
    pub fn server_message(&self) -> Option<String> {
        Some(one_line(self.postgres()?.as_db_error()?.message()))
    }

    /// The rejection, if one of our SQL functions or triggers raised the error.
    pub fn rejection(&self) -> Option<Rejection<'_>> {
        let kind = RejectionKind::from_sqlstate(self.sqlstate()?)?;
        let error = self.postgres()?.as_db_error()?;
        Some(Rejection {
            kind,
            message: error.message(),
            hint: error.hint(),
        })
    }

    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, StoreError::Conflict(_))
    }

    /// Whether the server refused a write because it is read-only, as a standby is.
    pub(crate) fn is_read_only(&self) -> bool {
        self.sqlstate() == Some("25006")
    }

    /// Whether the connection is gone: lost in the network, or ended by the server (57P…).
    pub(crate) fn is_connection_lost(&self) -> bool {
        match self {
            StoreError::Unavailable { reason, .. } => {
                let ended = self.sqlstate().is_some_and(|code| code.starts_with("57P"));
                ended || *reason == Unavailability::ConnectionLost
            }
            _ => false,
        }
    }

    fn postgres(&self) -> Option<&tokio_postgres::Error> {
        match self {
            StoreError::Unavailable { source, .. } => source.as_ref(),
            StoreError::Conflict(source) => source.as_ref(),
            StoreError::Query(source) => Some(source),
            StoreError::Schema(SchemaError::Failed { source, .. }) => Some(source),
            StoreError::Schema(SchemaError::Altered { .. } | SchemaError::Unreleased) => None,
            StoreError::Damaged(_) => None,
        }
    }
}

impl RejectionKind {
    fn from_sqlstate(code: &str) -> Option<RejectionKind> {
        match code {
            "SV400" => Some(RejectionKind::Malformed),
            "SV404" => Some(RejectionKind::NotFound),
            "SV409" => Some(RejectionKind::Conflict),
            "SV410" => Some(RejectionKind::ModeMissing),
            _ => None,
        }
    }
}

impl From<Damaged> for StoreError {
    fn from(damaged: Damaged) -> StoreError {
        StoreError::Damaged(damaged.0.to_owned())
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> StoreError {
        let unavailable = |reason, source| StoreError::Unavailable {
            reason,
            source: Some(source),
        };
        match error.code().map(SqlState::code) {
            Some("40001" | "40P01") => StoreError::Conflict(Some(error)),
            Some("XX000") if is_catalog_race(&error) => StoreError::Conflict(Some(error)),
            Some(code) if is_unavailability(code) => unavailable(Unavailability::Refused, error),
            None if is_lost(&error) => unavailable(Unavailability::ConnectionLost, error),
            _ => StoreError::Query(error),
        }
    }
}

/// Whether two transactions changed the same row of a system catalog at once, for example by
/// GRANT and CREATE TABLE. PostgreSQL has no SQLSTATE for it, and never translates this message.
fn is_catalog_race(error: &tokio_postgres::Error) -> bool {
    let message = error.as_db_error().map(DbError::message);
    message.is_some_and(|message| message.starts_with("tuple concurrently "))
}

/// Classes 08 (connection), 53 (resources) and 58 (system), and the states for: read-only,
/// idle timeout, lock timeout, statement timeout, shutting down, starting.
fn is_unavailability(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    matches!(class, "08" | "53" | "58")
        || matches!(
            code,
            "25006" | "25P03" | "55P03" | "57014" | "57P01" | "57P02" | "57P03" | "57P05"
        )
}

/// Classes 22 (data exception), 23 (integrity constraint), 54 (program limit) and P0 (raised
/// by a function or trigger). An error without a state means that the driver could not encode
/// the value.
fn is_about_data(code: &str) -> bool {
    matches!(code.get(..2), Some("22" | "23" | "54" | "P0"))
}

/// tokio-postgres reports a lost connection by `is_closed` or as an I/O error. Other errors
/// without a state are about values.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    let io = error.source().is_some_and(|below| below.is::<io::Error>());
    error.is_closed() || io
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_table_or_privilege_is_no_data_error() {
        for code in ["42P01", "42703", "42501", "0A000", "XX000", "26000", ""] {
            assert!(!is_about_data(code), "{code}");
        }
        for code in ["22021", "22003", "23514", "23502", "54000", "P0001"] {
            assert!(is_about_data(code), "{code}");
        }
    }
}
