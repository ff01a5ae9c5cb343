//! `svc-ingest key`: shows the signing key's public half. It never creates or changes a key.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;

use super::output::{OutputArgs, facts};
use crate::{config, signing};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the key's id and size, and the JWKS document
    Show(OutputArgs),
}

pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let Command::Show(args) = command;
    let path = config::jwt_key_file()?;
    let Some(key) = signing::read(&path)? else {
        bail!(
            "{} does not exist yet: the service generates it on first start",
            path.display()
        );
    };
    let jwks: serde_json::Value = serde_json::from_str(&key.jwks().body)?;
    let (kid, bits) = (key.kid(), key.bits());
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
