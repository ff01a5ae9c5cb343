//! One step of the schema. `schema/migrate` applies them, in the order of their versions.

#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub version: i32,
    /// The version in four digits, an underscore, and the name.
    pub title: &'static str,
    pub sql: &'static str,
}
