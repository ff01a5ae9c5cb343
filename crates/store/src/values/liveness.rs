//! Whether an identity is in use, by what the database can prove.

use std::error::Error;

use tokio_postgres::types::{FromSql, Type};

/// The SQL function `agent_liveness` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Offline,
    /// It counts as online, without a proof: a grace period, a drain, a lost instance, or a
    /// stream that is silent.
    Presumed,
    /// A live instance holds its stream. Within the last interval the stream was opened, or it
    /// brought a message after another machine had presented the identity.
    Heard,
}

impl<'a> FromSql<'a> for Liveness {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Liveness, Box<dyn Error + Sync + Send>> {
        Ok(match <&str>::from_sql(ty, raw)? {
            "offline" => Liveness::Offline,
            "heard" => Liveness::Heard,
            _ => Liveness::Presumed,
        })
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}
