//! Settings from environment variables, read once into plain structs.
//!
//! A program declares its variables in one table ([`variables!`](crate::variables)), which its
//! documentation is compared with. A [`Reader`] reads them by name. All problems are reported together, each
//! by its variable's name; the value of a secret never appears in one.

pub mod parse;
mod problem;
mod reader;
mod variable;

pub use problem::{Problem, Problems};
pub use reader::{Lookup, Reader, environment, read};
pub use variable::{Fallback, Variable};
