//! The web console: a server-rendered application over the ingest service's database.
//!
//! It reads the service's tables as the web role, changes them only through the functions that the
//! role may call, and never calls the service while it handles a request.
//!
//! # Reading order
//!
//! 1. `config` and `cli`: the environment and the commands.
//! 2. `server` and `http`: the list of parts, and the port with its limits.
//! 3. `app`: the state that handlers share, and the routes. `security`: headers of every response.
//! 4. `auth`: people, passwords, sessions, roles, limits.
//! 5. `pages`: one file for each page. `view`: how values are shown.
//! 6. `feed` and `live`: what changed, and the streams that show it.
//! 7. `webhook`: notes of agents, by JWT. `download`: releases and the install script.

mod address;
mod app;
mod assets;
mod auth;
pub mod cli;
pub mod config;
mod download;
mod error;
mod feed;
mod http;
mod id;
mod live;
mod pages;
mod places;
mod secret;
mod security;
pub mod server;
mod telemetry;
mod view;
mod webhook;

/// The version of the program.
pub const VERSION: &str = match option_env!("SVC_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
