//! Who gives a command, and why: the options of all commands that change something.

pub use svc_common::actor::{name, os_user};

/// For commands that change something.
#[derive(Debug, clap::Args)]
pub struct Actor {
    /// Who decides, for the record
    #[arg(long, value_name = "NAME", default_value_t = os_user(), value_parser = name)]
    pub actor: String,
}

/// For commands that decide about agents, hosts or tokens.
#[derive(Debug, clap::Args)]
pub struct Attribution {
    #[command(flatten)]
    pub by: Actor,
    /// Why, for the record
    #[arg(long, value_parser = name)]
    pub reason: Option<String>,
}
