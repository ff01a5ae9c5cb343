//! svc-agent, the host agent: it enrols its machine, takes samples of the machine's vitals,
//! and delivers every sample to svc-ingest, or declares why it could not.
//!
//! In reading order:
//!
//! 1. The machine. [`facts`] identify it; [`vitals`] are the values of one sample. Both read
//!    `/proc` and `/sys` only, and never fail.
//! 2. Samples until they are acknowledged. [`recorder`] takes them, assigns their sequence
//!    numbers, and hands them out as reports; [`spool`] stores them on disk; [`clock`] keeps
//!    the service's time.
//! 3. The connection. [`identity`] is the agent's key; [`trust`] decides which server to
//!    believe, [`anchors`] keeps what the service adds to that; [`wire`] is the client side of the protocol, and [`caller`] puts these together.
//! 4. The running agent. [`agent`] registers, holds the heartbeat stream and reconnects;
//!    [`timing`] lists its waits.
//!    [`update`] replaces the agent by newer versions; [`settings`] are those that the service sends.
//! 5. Files and settings. [`config`] reads settings; [`data_dir`] is the agent's folder, with
//!    [`state`] (needed after a restart) and [`status`] (for `svc-agent status`).
//! 6. The command line: [`cli`], with [`telemetry`] for log lines and [`release`] for this version and
//!    notices about newer ones.

pub mod facts;
mod machine;
pub mod spool;
pub mod vitals;

pub mod anchors;
pub mod identity;
pub mod trust;
pub mod wire;

pub mod agent;
pub mod caller;
pub mod cell;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod recorder;
pub mod release;
pub mod settings;
mod stamp;
pub mod state;
pub mod status;
mod sync;
pub mod timing;
pub mod update;

pub mod cli;
pub mod telemetry;
