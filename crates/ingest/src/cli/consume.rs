//! `svc-ingest consume`: the consumer alone, for as many processes as the load needs.

use std::process::ExitCode;

use super::serve;
use crate::{
    config::{Consume, Log},
    server::Worker,
    telemetry,
};

pub async fn run() -> anyhow::Result<ExitCode> {
    telemetry::init(&Log::from_env());
    let worker = Worker::bind(Consume::from_env()?).await?;
    let stop = serve::stop_on_signals()?;
    serve::report(worker.run(stop).await)
}
