//! `svc-ingest migrate`: the schema, brought up to date by hand.

use std::process::ExitCode;

use svc_store::{Store, StoreOptions};

use super::output::{Output, print, print_json};
use crate::config::Database;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let store = Store::new(Database::from_env()?.url, StoreOptions::default())?;
    let report = store.migrate().await?;
    match args.output {
        Output::Json => print_json(&serde_json::json!({ "applied": report.applied }))?,
        Output::Table if report.applied.is_empty() => print("the schema is up to date")?,
        Output::Table => print(&format!("applied {}", report.applied.join(", ")))?,
    }
    Ok(ExitCode::SUCCESS)
}
