//! `svc-ingest release add` and `release list`: the releases that the service may offer to agents.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use serde_json::json;
use svc_release::Update;
use svc_store::{NewRelease, ReleaseRecord};

use super::{public_keys, read, signature_of};
use crate::cli::{
    actor::Actor,
    database::open,
    output::{self, Column, Fit, Output, OutputArgs, or_dash},
    time::when,
};

/// The only product that updates itself.
const PRODUCT: &str = "svc-agent";
const SHOWN: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The manifest, svc-agent.json, with its signature beside it in a file with the ending .sig
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The public keys that are trusted, one after another in one file
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    #[command(flatten)]
    by: Actor,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

const COLUMNS: &[Column<ReleaseRecord>] = &[
    ("SERIAL", Fit::Whole, |release| release.serial.to_string()),
    ("VERSION", Fit::Whole, |release| release.version.clone()),
    ("PLATFORMS", Fit::Wraps, |release| {
        release.platforms.join(", ")
    }),
    ("ROLLOUT", Fit::Whole, |release| {
        or_dash(release.state.map(|state| state.to_string()))
    }),
    ("ADDED", Fit::Whole, |release| when(Some(release.added_at))),
    ("BY", Fit::Wraps, |release| release.added_by.clone()),
];

/// The service needs no keys: agents verify what they are offered. The signature is verified here so that a mistake shows
/// before thousands of agents refuse the release.
pub async fn add(args: Args) -> anyhow::Result<ExitCode> {
    let (manifest, signature, update) = verified(&args.file, &args.keys)?;
    let platforms: Vec<&str> = update.platforms.keys().map(String::as_str).collect();
    let (serial, version) = (i64::try_from(update.serial)?, update.version.to_string());
    let release = NewRelease {
        serial,
        version: &version,
        platforms: &platforms,
        manifest: &manifest,
        signature: &signature,
    };
    open().await?.release_add(&release, &args.by.actor).await?;
    let value = json!({ "serial": serial, "version": version, "platforms": platforms });
    args.output.print(&value, || {
        format!(
            "release {serial}: version {version} for {}. `svc-ingest rollout start --serial {serial}` offers it to agents",
            platforms.join(", ")
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn verified(file: &Path, keys: &Path) -> anyhow::Result<(Vec<u8>, Vec<u8>, Update)> {
    let keys = public_keys(keys)?;
    let (manifest, signature) = (read(file)?.to_vec(), read(&signature_of(file))?.to_vec());
    let update = Update::verify(&manifest, &signature, &keys);
    let update = update.with_context(|| file.display().to_string())?;
    ensure!(
        update.product == PRODUCT,
        "{}: a manifest of {}, which does not update itself",
        file.display(),
        update.product
    );
    Ok((manifest, signature, update))
}

pub async fn list(args: OutputArgs) -> anyhow::Result<ExitCode> {
    let releases = open().await?.releases_list(SHOWN).await?.rows;
    args.output.print(&releases, || match releases.is_empty() {
        true => "no release yet: `svc-ingest release add FILE` adds a signed manifest".into(),
        false => output::table(COLUMNS, &releases),
    })?;
    Ok(ExitCode::SUCCESS)
}
