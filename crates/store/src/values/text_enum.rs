//! Closed sets that are texts in the database, on the command line and in metrics.
//!
//! A newer version may have written a text that this one does not know, and no read fails because of it. A set that decides
//! about access names the variant that such a text is taken for (`else Revoked`). A set that is only shown is read as
//! [`Stored`], which keeps the text.

use std::{error::Error, fmt};

use serde::{Serialize, Serializer};
use tokio_postgres::types::{FromSql, Type};

/// What [`Stored`] needs of a set. `text_enum!` implements it.
pub trait TextEnum: Copy {
    fn text(self) -> &'static str;

    fn of(text: &str) -> Option<Self>;
}

/// A text of a closed set as a row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<E> {
    Known(E),
    /// A newer version has written it.
    Unknown(String),
}

impl<E: TextEnum> Stored<E> {
    pub fn as_str(&self) -> &str {
        match self {
            Stored::Known(one) => one.text(),
            Stored::Unknown(text) => text,
        }
    }

    pub fn known(&self) -> Option<E> {
        match self {
            Stored::Known(one) => Some(*one),
            Stored::Unknown(_) => None,
        }
    }
}

impl<E: TextEnum> fmt::Display for Stored<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<E: TextEnum> Serialize for Stored<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'a, E: TextEnum> FromSql<'a> for Stored<E> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Stored<E>, Box<dyn Error + Sync + Send>> {
        let text = <&str>::from_sql(ty, raw)?;
        Ok(E::of(text).map_or_else(|| Stored::Unknown(text.to_owned()), Stored::Known))
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

/// Declares an enum and the text of each variant. With `else` behind it, columns are read as the enum, and a text that the
/// schema does not allow as that variant.
macro_rules! text_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+
        }
        $(else $unknown:ident)?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            pub const ALL: [$name; [$($text,)+].len()] = [$($name::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            pub fn parse(text: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.as_str() == text)
            }
        }

        impl $crate::values::text_enum::TextEnum for $name {
            fn text(self) -> &'static str {
                self.as_str()
            }

            fn of(text: &str) -> Option<$name> {
                $name::parse(text)
            }
        }

        $(
            impl $name {
                pub(crate) fn from_column(text: &str) -> $name {
                    $name::parse(text).unwrap_or($name::$unknown)
                }
            }

            impl std::fmt::Display for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(self.as_str())
                }
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                    serializer.serialize_str(self.as_str())
                }
            }

            impl<'a> tokio_postgres::types::FromSql<'a> for $name {
                fn from_sql(
                    ty: &tokio_postgres::types::Type,
                    raw: &'a [u8],
                ) -> std::result::Result<$name, Box<dyn std::error::Error + Sync + Send>> {
                    <&str as tokio_postgres::types::FromSql>::from_sql(ty, raw).map($name::from_column)
                }

                fn accepts(ty: &tokio_postgres::types::Type) -> bool {
                    <&str as tokio_postgres::types::FromSql>::accepts(ty)
                }
            }
        )?
    };
}

pub(crate) use text_enum;

#[cfg(test)]
mod tests {
    use super::*;

    text_enum! {
        enum Light {
            Green = "green",
        }
    }

    #[test]
    fn a_text_of_a_newer_version_is_kept() {
        let read = |text: &str| Stored::<Light>::from_sql(&Type::TEXT, text.as_bytes()).unwrap();
        assert_eq!(read("green").known(), Some(Light::Green));
        let newer = read("amber");
        assert_eq!((newer.known(), newer.to_string()), (None, "amber".into()));
    }
}
