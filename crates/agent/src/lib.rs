//! The host agent, in the order of its story: it knows its machine (`facts`,
//! `vitals`), keeps what it measured until the service has it (`spool`, `record`), and
//! tells: who it is (`identity`), whom it believes (`trust`), what is said (`wire`), and
//! the life that follows from it (`agent`).

pub mod facts;
mod machine;
pub mod spool;
pub mod vitals;

pub mod identity;
pub mod trust;
pub mod wire;

pub mod agent;
pub mod caller;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod recorder;
pub mod release;
pub mod state;
pub mod status;
pub mod timing;

pub mod cli;
pub mod telemetry;
