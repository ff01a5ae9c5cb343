//! `svc-ingest key`: shows the signing key's public half, and makes the next key. It never changes or replaces a key.

mod rotate;
mod usage;

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use clap::Subcommand;
use svc_ingest::{
    config,
    signing::{self, Keyring},
};

use super::output::{OutputArgs, facts};
pub use usage::describe;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the key's id and size, and the JWKS document
    Show(OutputArgs),
    /// Make the next key, and print the steps that put it into use without an interruption
    Rotate(OutputArgs),
}

pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Show(args) => show(&args),
        Command::Rotate(args) => rotate::run(&args),
    }
}

fn show(args: &OutputArgs) -> anyhow::Result<ExitCode> {
    let (path, keys) = configured()?;
    let jwks: serde_json::Value = serde_json::from_str(&keys.jwks().body)?;
    let (kid, bits) = (keys.signing().kid(), keys.signing().bits());
    let value = serde_json::json!({"file": path, "kid": kid, "bits": bits, "jwks": jwks});
    args.output.print(&value, || {
        facts(&[
            ("file", path.display().to_string()),
            ("kid", kid.to_owned()),
            ("size", format!("{bits} bits")),
            ("jwks", jwks.to_string()),
        ])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The path of the signing key, and all keys of the configuration.
fn configured() -> anyhow::Result<(PathBuf, Keyring)> {
    let (path, extra) = config::jwt_keys()?;
    let Some(key) = signing::read(&path)? else {
        bail!(
            "{} does not exist yet: the service generates it on first start",
            path.display()
        );
    };
    Ok((path, Keyring::new(key, extra)))
}
