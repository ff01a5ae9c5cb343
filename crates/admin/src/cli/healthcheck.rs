//! `svc-ingest healthcheck`: asks `/healthz` of the service on this machine.

use std::process::ExitCode;

use svc_common::http::{Transport, healthcheck};
use svc_ingest::config;

pub async fn run() -> anyhow::Result<ExitCode> {
    healthcheck(config::http_address()?, Transport::Clear).await?;
    Ok(ExitCode::SUCCESS)
}
