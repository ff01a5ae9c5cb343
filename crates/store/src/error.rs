//! What can go wrong with the database, sorted by what a caller does about it.
//!
//! `Unavailable` says nothing about the data: wait, and try the same again.
//! `Conflict` lost every race it ran. `Schema` needs an operator. `Query` is a
//! defect or a rule of the schema, which `constraint()` and `sqlstate()` name.
//! A slow or full database must never look like bad data, so timeouts and lack
//! of resources count as unavailable.

use tokio_postgres::error::SqlState;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the database is unavailable: {reason}")]
    Unavailable {
        reason: Unavailability,
        #[source]
        source: Option<tokio_postgres::Error>,
    },
    /// By PostgreSQL's judgement, or by ours.
    #[error("the transaction lost every race against others")]
    Conflict(#[source] Option<tokio_postgres::Error>),
    #[error("the database schema does not fit this program")]
    Schema(#[source] SchemaError),
    #[error("the database refused a statement")]
    Query(#[source] tokio_postgres::Error),
}

/// Why the database could not be used just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    #[error("no connection could be opened")]
    Connect,
    #[error("no connection of the pool came free in time")]
    PoolBusy,
    #[error("it did not answer in time")]
    Deadline,
    #[error("the connection was lost")]
    ConnectionLost,
    #[error("it is not accepting this work now")]
    Refused,
}

/// A rule of our own SQL functions and triggers that a call broke: for people to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection<'a> {
    pub kind: RejectionKind,
    pub message: &'a str,
    pub hint: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionKind {
    /// SV400: the call makes no sense.
    Malformed,
    /// SV404: what it names does not exist.
    NotFound,
    /// SV409: what it asks for cannot follow from how things stand.
    Conflict,
    /// SV410: it must be said what becomes of the machine's active agent.
    ModeMissing,
}

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("migration {migration} was changed after it was applied")]
    Altered { migration: String },
    #[error("migration {migration} failed")]
    Failed {
        migration: String,
        #[source]
        source: tokio_postgres::Error,
    },
}

impl StoreError {
    pub(crate) fn unavailable(reason: Unavailability) -> StoreError {
        StoreError::Unavailable {
            reason,
            source: None,
        }
    }

    /// True where the same call may succeed later without anybody's doing.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// The five characters that PostgreSQL, or a trigger of ours, gave.
    pub fn sqlstate(&self) -> Option<&str> {
        self.postgres()?.code().map(SqlState::code)
    }

    /// The name of the constraint that was violated.
    pub fn constraint(&self) -> Option<&str> {
        self.postgres()?.as_db_error()?.constraint()
    }

    /// The message of the server alone, where the server spoke.
    pub fn server_message(&self) -> Option<&str> {
        Some(self.postgres()?.as_db_error()?.message())
    }

    /// The rule of ours that the call broke, where it broke one.
    pub fn rejection(&self) -> Option<Rejection<'_>> {
        let kind = RejectionKind::from_sqlstate(self.sqlstate()?)?;
        let error = self.postgres()?.as_db_error()?;
        Some(Rejection {
            kind,
            message: error.message(),
            hint: error.hint(),
        })
    }

    /// Running the whole transaction again is the remedy.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, StoreError::Conflict(_))
    }

    /// The session is over, by the network or by the server's own decision.
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
            StoreError::Schema(SchemaError::Altered { .. }) => None,
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

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> StoreError {
        let unavailable = |reason, source| StoreError::Unavailable {
            reason,
            source: Some(source),
        };
        match error.code().map(SqlState::code) {
            Some("40001" | "40P01") => StoreError::Conflict(Some(error)),
            Some(code) if is_away(code) => unavailable(Unavailability::Refused, error),
            None if is_lost(&error) => unavailable(Unavailability::ConnectionLost, error),
            _ => StoreError::Query(error),
        }
    }
}

/// Classes 08 (connection), 53 (resources), 58 (system), and single states:
/// read-only, killed while idle, lock and statement timeouts, shutting down or
/// starting.
fn is_away(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    matches!(class, "08" | "53" | "58")
        || matches!(
            code,
            "25006" | "25P03" | "55P03" | "57014" | "57P01" | "57P02" | "57P03" | "57P05"
        )
}

/// tokio-postgres tells a lost connection only by `is_closed` or by an I/O
/// error below; anything else without a code is about values, not the network.
fn is_lost(error: &tokio_postgres::Error) -> bool {
    let io = std::error::Error::source(error).is_some_and(|below| below.is::<std::io::Error>());
    error.is_closed() || io
}
