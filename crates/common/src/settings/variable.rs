//! The table of a program's environment variables: names, defaults and meanings.

/// What an unset variable means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Required,
    Default(&'static str),
    /// The feature is off, or something else applies. The text is for the documentation.
    Unset(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub fallback: Fallback,
    /// Problems never show the value of a secret.
    pub secret: bool,
    pub meaning: &'static str,
}

/// Declares `VARIABLES`. A row is the name, the fallback, `secret` where the value is one, and the meaning.
#[macro_export]
macro_rules! variables {
    ($($name:literal, $kind:ident$(($text:literal))?, $($secret:ident)? $meaning:literal;)+) => {
        pub const VARIABLES: &[$crate::settings::Variable] = &[$($crate::settings::Variable {
            name: $name,
            fallback: $crate::settings::Fallback::$kind$(($text))?,
            secret: $crate::variables!(@ $($secret)?),
            meaning: $meaning,
        }),+];
    };
    (@) => { false };
    (@ secret) => { true };
}
