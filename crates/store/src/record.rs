//! Structs that are read from rows: each field is filled from the column of the same name.

/// Declares a struct and its `from_row`.
macro_rules! record {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $name {
            pub(crate) fn from_row(row: &tokio_postgres::Row) -> crate::error::Result<$name> {
                Ok($name {
                    $($field: row.try_get(stringify!($field))?,)*
                })
            }
        }
    };
}

pub(crate) use record;
