//! The parameters of a statement. Each is sent with a type of PostgreSQL, which follows from its Rust type.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

/// A value that is sent as a parameter.
pub(crate) trait Typed {
    const TYPE: Type;
}

/// A value that can be in an array.
pub(crate) trait Element {
    const ARRAY: Type;
}

macro_rules! typed {
    ($($of:ty: $scalar:ident, $array:ident;)*) => {
        $(
            impl Typed for $of {
                const TYPE: Type = Type::$scalar;
            }

            impl Element for $of {
                const ARRAY: Type = Type::$array;
            }
        )*
    };
}

typed! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    f32: FLOAT4, FLOAT4_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    [u8]: BYTEA, BYTEA_ARRAY;
    Uuid: UUID, UUID_ARRAY;
    Timestamp: TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
    IpAddr: INET, INET_ARRAY;
    Value: JSONB, JSONB_ARRAY;
}

impl<T> Typed for Json<T> {
    const TYPE: Type = Type::JSONB;
}

impl<T> Element for Json<T> {
    const ARRAY: Type = Type::JSONB_ARRAY;
}

impl<T: Typed + ?Sized> Typed for &T {
    const TYPE: Type = T::TYPE;
}

impl<T: Element + ?Sized> Element for &T {
    const ARRAY: Type = T::ARRAY;
}

impl Element for Vec<u8> {
    const ARRAY: Type = Type::BYTEA_ARRAY;
}

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: Element> Element for Option<T> {
    const ARRAY: Type = T::ARRAY;
}

impl<T: Element> Typed for [T] {
    const TYPE: Type = T::ARRAY;
}

impl<T: Element> Typed for Vec<T> {
    const TYPE: Type = T::ARRAY;
}

pub(crate) fn type_of<T: Typed + ?Sized>(_: &T) -> Type {
    T::TYPE
}

/// The parameters of a statement: `params![host.0, actor]`. It borrows the values.
macro_rules! params {
    ($($value:expr),+ $(,)?) => {
        [$((
            &$value as &(dyn tokio_postgres::types::ToSql + Sync),
            $crate::statements::params::type_of(&$value),
        )),+]
    };
}

pub(crate) use params;
