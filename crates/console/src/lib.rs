//! The web console: a server-rendered application over the ingest service's database.
//!
//! It reads the service's tables as the web role, changes them only through the functions that the
//! role may call, and never calls the service while it handles a request.
//!
//! # Reading order
//!
//! Imports form a tree: what comes later here is not imported by what comes earlier.
//!
//! 1. `render`, `error`, `secret`, `assets`, `address`, `slots`, `throttle`, `telemetry`, `releases`, `config`, `cookie`, `form`: small parts.
//! 2. `feed`: what changed. `live`: which views are watched. `doors` and `password`: limits of signing in.
//!    `clients`: what one client or person may use at a time. `jwks`: the service's public keys.
//! 3. `state`: all of these, as handlers share them.
//! 4. `browser`: where a person has signed in before. `session`: who sends a request. `failures`: the record of attempts to come in. `shell`: what every page has around it. `view`: how values are shown. `id`: ids in paths.
//! 5. `pages`: one file for each page. `webhook`: notes of agents, by JWT. `download`: serves releases and the install script.
//! 6. `routes`: the addresses of all of them; `security`: headers of every response. `http`: the port with its limits.
//! 7. `server`: the list of parts. `cli`: the commands.

mod address;
mod assets;
mod browser;
pub mod cli;
mod clients;
pub mod config;
mod cookie;
mod doors;
mod download;
mod error;
mod failures;
mod feed;
mod form;
mod http;
mod id;
mod jwks;
mod live;
mod pages;
mod password;
mod releases;
mod render;
mod routes;
mod secret;
mod security;
pub mod server;
mod session;
mod shell;
mod slots;
mod state;
mod telemetry;
mod throttle;
mod view;
mod webhook;

/// The version of the program.
pub const VERSION: &str = match option_env!("SVC_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
