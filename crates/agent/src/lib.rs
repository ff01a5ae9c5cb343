//! The host agent, in the order of its story: it knows its machine (`facts`,
//! `vitals`), keeps what it measured until the service has it (`spool`), and tells: who
//! it is (`identity`), whom it believes (`trust`), and what is said (`wire`).

pub mod facts;
mod machine;
pub mod spool;
pub mod vitals;

pub mod identity;
pub mod trust;
pub mod wire;

pub mod clock;
pub mod config;
pub mod data_dir;
pub mod release;
pub mod state;
pub mod timing;
