//! The host agent, in the order of its story: it knows its machine (`facts`,
//! `vitals`), keeps what it measured until the service has it (`spool`), and tells.

pub mod facts;
mod machine;
pub mod spool;
pub mod vitals;
