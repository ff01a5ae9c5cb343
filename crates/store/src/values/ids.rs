//! Identifiers as distinct types, so that the compiler does not accept a host's id for an
//! agent's.

use std::{error::Error, fmt};

use serde::Serialize;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl<'a> FromSql<'a> for $name {
            fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<$name, Box<dyn Error + Sync + Send>> {
                Uuid::from_sql(ty, raw).map($name)
            }

            fn accepts(ty: &Type) -> bool {
                <Uuid as FromSql>::accepts(ty)
            }
        }
    };
}

id!(
    /// The id of an agent: `sub` in its JWTs.
    AgentId
);
id!(
    /// The id of a host record.
    HostId
);
id!(
    /// The public id of an enrolment token.
    TokenId
);
id!(
    /// The id of a person who may use the console.
    UserId
);
