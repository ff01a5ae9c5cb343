//! Closed sets that are texts in the database, on the command line and in metrics.
//!
//! A newer version may have written a text that this one does not know, and no read fails because of it: the set names the
//! variant that such a text is taken for. Of a set that decides about access it is the one that permits least
//! (`else Revoked`), of a set that is only shown the one that claims least (`else Other`).

/// Declares an enum and the text of each variant. One with `else` can be read from a column and serialized.
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

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        $(
            impl $name {
                pub(crate) fn from_column(text: &str) -> $name {
                    $name::parse(text).unwrap_or($name::$unknown)
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
