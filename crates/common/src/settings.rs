//! Settings from environment variables, read once into plain structs.
//!
//! A program declares its variables in one table ([`variables!`](crate::variables)), which its
//! documentation is compared with. A [`Reader`] reads them by name. All problems are reported together, each
//! by its variable's name; the value of a secret never appears in one.

mod env_file;
mod environment;
pub mod parse;
mod problem;
mod reader;
mod variable;

pub use env_file::{EnvFile, assignment, read_text};
pub use environment::{environment, read_environment, use_file};
pub use problem::{Problem, Problems};
pub use reader::{Lookup, Reader, read};
pub use variable::{Fallback, Variable};
